#compdef dlrun
_arguments -S \
    '(- *)'{-h,--help}'[show help]' \
    '(- *)--version[show the version]' \
    '--launcher[what the command starts with]:launcher:(plain torchrun srun)' \
    '--grace[seconds between signal and requeue]:seconds:' \
    '--ack-wait[seconds to wait for the requeue]:seconds:' \
    '--forward[signal sent to the command]:signal:(none USR1 USR2 TERM INT HUP CONT)' \
    '*::command:_normal'
