"""``dlctl test-signal``: show that a job's checkpoint handler works, before it is needed.

A trial starts the job, waits until it trains, sends the signal of its contract, lets it save and
stop, starts it again and looks whether it goes on. `trial` has the order of these steps,
`local_trial` and `slurm_trial` do them, `run_directory` and `local_trial` look, and `verdict` says
what all that means.
"""
