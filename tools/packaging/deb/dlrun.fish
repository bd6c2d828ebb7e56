# fish completion of dlrun: its options, then the command that it runs.
complete -c dlrun -f -a '(__fish_complete_subcommand)'
complete -c dlrun -s h -l help -d 'Show help'
complete -c dlrun -l version -d 'Show the version'
complete -c dlrun -l launcher -x -a 'plain torchrun srun' -d 'What the command starts with'
complete -c dlrun -l grace -x -d 'Seconds between signal and requeue'
complete -c dlrun -l ack-wait -x -d 'Seconds to wait for the requeue'
complete -c dlrun -l forward -x -a 'none USR1 USR2 TERM INT HUP CONT' -d 'Signal sent to the command'
