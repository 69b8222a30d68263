# netnice: an @rate at the end of a command limits the command and all programs that it starts.
# For ~/.bashrc:  eval "$(netnice shell-init bash)"

__netnice=@NETNICE@
__netnice_name=
__netnice_body=

# The DEBUG trap, which runs before each simple command. Without an @rate it only compares the text.
__netnice_trap='case $__netnice_name:$BASH_COMMAND in :*[[:space:]]@*|[!:]*) __netnice_look "$BASH_COMMAND" "$_" ;; esac'

# Replaces the command in the text $1 by a function if the text has an @rate. ($2 restores $_.)
__netnice_look() {
    local found
    [[ -z $__netnice_name ]] || __netnice_undo
    [[ $1 == *[[:space:]]@* ]] || return 0
    found=$("$__netnice" shell-words -- "$1") || return 0
    case $found in
    "literal "* | "job "*) __netnice_stand_in "${found#* }" ;;
    "expand "*) eval "__netnice_stand_in ${found#expand }" ;;
    esac
    return 0
}

# Makes a function with the name of the command $1, for one run of the command.
__netnice_stand_in() {
    local run kinds
    [[ $1 =~ ^[[:alnum:]_./+:@%,~^-]+$ ]] || return 0
    kinds=$(type -at -- "$1" 2>/dev/null)
    case $'\n'$kinds in
    *$'\n'function*)
        run=__netnice_function
        __netnice_body=$(declare -f -- "$1")
        ;;
    *$'\n'builtin*)
        [[ $1 == command || $1 == exec ]] || return 0
        run=__netnice_prefix
        ;;
    *$'\n'file*) run=__netnice_program ;;
    *) return 0 ;;
    esac
    __netnice_name=$1
    eval "function $1 { $run $BASHPID $1 \"\$@\"; }"
}

# Removes that function, and restores a function of the user with the same name.
__netnice_undo() {
    [[ -n $__netnice_name ]] || return 0
    unset -f -- "$__netnice_name"
    [[ -z $__netnice_body ]] || eval "$__netnice_body"
    __netnice_name=
    __netnice_body=
}

# Runs a program. A process that the shell made for this command alone executes the program itself.
__netnice_program() {
    local by=$1
    shift
    __netnice_undo
    [[ $BASHPID == "$by" ]] || exec "$__netnice" at "$@"
    "$__netnice" at "$@"
}

# Runs the program behind `command` and `exec`.
__netnice_prefix() {
    local by=$1 name=$2
    shift 2
    __netnice_undo
    [[ $name != exec && $BASHPID == "$by" ]] || exec "$__netnice" at "$@"
    "$__netnice" at "$@"
}

# Runs a function of the user in a shell of its own that limits itself first.
__netnice_function() {
    local name=$2 rate=${!#}
    set -- "${@:3:$#-3}"
    __netnice_undo
    ("$__netnice" shell-limit "$rate" && "$name" "$@")
}

# For prompts:  PS1='\u@\h:\w$(netnice_limit)\$ '
netnice_limit() { "$__netnice" shell-prompt; }

# Sets the trap, and keeps an existing one before it. Sets it again if another command has replaced it.
__netnice_arm() {
    local old
    old=$(trap -p DEBUG)
    [[ $old != *__netnice_look* ]] || return 0
    set -o functrace
    eval "set -- $old"
    trap -- "${3:+$3
}$__netnice_trap" DEBUG
}

set -o functrace
__netnice_arm
if [[ $- == *i* && "${PROMPT_COMMAND[*]-}" != *__netnice_arm* ]]; then
    if [[ $(declare -p PROMPT_COMMAND 2>/dev/null) == "declare -a"* ]]; then
        PROMPT_COMMAND+=(__netnice_arm)
    else
        PROMPT_COMMAND=${PROMPT_COMMAND:+$PROMPT_COMMAND
}__netnice_arm
    fi
fi
