# bash completion of dlrun: its options, then the command that it runs.
_dlrun() {
    local cur prev i
    cur=${COMP_WORDS[COMP_CWORD]}
    prev=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            if ((COMP_CWORD == i + 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
            fi
            return
        fi
    done
    case $prev in
        --launcher) mapfile -t COMPREPLY < <(compgen -W "plain torchrun srun" -- "$cur") ;;
        --forward) mapfile -t COMPREPLY < <(compgen -W "none USR1 USR2 TERM INT HUP CONT" -- "$cur") ;;
        --grace | --ack-wait) ;;
        *) mapfile -t COMPREPLY < <(
            compgen -W "--launcher --grace --ack-wait --forward --version --help --" -- "$cur"
        ) ;;
    esac
}
complete -o bashdefault -o default -F _dlrun dlrun
