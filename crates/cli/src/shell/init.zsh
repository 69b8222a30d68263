# netnice: an @rate at the end of a command limits the command and all programs that it starts.
# For ~/.zshrc:  eval "$(netnice shell-init zsh)"

typeset -g __netnice=@NETNICE@
# The commands that a function replaces now: p for a program, or f and the text of the user's function.
typeset -gA __netnice_kept
typeset -gi __netnice_depth=0
zmodload zsh/system 2>/dev/null

# Replaces the commands with an @rate in the text $1 by functions, before the text runs.
__netnice_look() {
    emulate -L zsh
    local found line
    __netnice_undo
    [[ $1 == *[[:space:]]@* ]] || return 0
    found=$("$__netnice" shell-words --inside -- "$1") || return 0
    for line in "${(@f)found}"; do
        case $line in
        "literal "* | "job "*) __netnice_stand_in "${line#* }" "${line%% *}" ;;
        "expand "*) eval "__netnice_stand_in ${line#expand } expand" ;;
        esac
    done
    return 0
}

# Makes a function with the name of the command $1, until __netnice_undo. If the command is a whole
# job ($2), its process is a child of this shell that runs nothing else.
__netnice_stand_in() {
    emulate -L zsh
    local run by
    [[ $2 != job ]] || by=${sysparams[pid]-}
    if (( ${+functions[$1]} )); then
        run=__netnice_function
        __netnice_kept[$1]=f${functions[$1]}
    elif (( ${+builtins[$1]} )); then
        [[ $1 == (command|exec) ]] || return 0
        run=__netnice_prefix
        __netnice_kept[$1]=p
    elif whence -p -- "$1" >/dev/null; then
        run=__netnice_program
        __netnice_kept[$1]=p
    else
        return 0
    fi
    functions[$1]="$run '$by' ${(q)1} \"\$@\""
}

# Removes these functions, and restores functions of the user with the same names.
__netnice_undo() {
    emulate -L zsh
    local name kept
    for name in "${(@k)__netnice_kept}"; do
        kept=${__netnice_kept[$name]}
        unset "functions[$name]"
        [[ $kept == p ]] || functions[$name]=${kept#f}
    done
    __netnice_kept=()
}

# Runs a program. A process that the shell made for this command alone executes the program itself.
__netnice_program() {
    emulate -L zsh
    local by=$1
    shift
    if [[ -n $by && $by == "${sysparams[ppid]}" ]]; then
        __netnice_undo
        exec "$__netnice" at "$@"
    fi
    "$__netnice" at "$@"
}

# Runs the program behind `command` and `exec`.
__netnice_prefix() {
    emulate -L zsh
    local by=$1 name=$2
    shift 2
    if [[ $name == exec || -n $by && $by == "${sysparams[ppid]}" ]]; then
        __netnice_undo
        exec "$__netnice" at "$@"
    fi
    "$__netnice" at "$@"
}

# Runs a function of the user in a shell of its own that limits itself first.
__netnice_function() {
    local __netnice_called=$2 __netnice_rate=${@[-1]}
    set -- "${(@)@[3,-2]}"
    (
        __netnice_undo
        "$__netnice" shell-limit "$__netnice_rate" && "$__netnice_called" "$@"
    )
}

# For prompts:  setopt prompt_subst; PS1='%n@%m %~$(netnice_limit)%# '
netnice_limit() { "$__netnice" shell-prompt }

if [[ -o interactive ]]; then
    __netnice_preexec() { __netnice_look "$3" }
    autoload -Uz add-zsh-hook
    add-zsh-hook preexec __netnice_preexec
    add-zsh-hook precmd __netnice_undo
elif (( ! ${+functions[__netnice_before]} )); then
    # A script has no preexec. A TRAPDEBUG of the script runs first.
    __netnice_before() { true }
    (( ! ${+functions[TRAPDEBUG]} )) || functions[__netnice_before]=$functions[TRAPDEBUG]
    TRAPDEBUG() {
        __netnice_before "$@"
        local __netnice_status=$?
        if [[ $ZSH_DEBUG_CMD == *[[:space:]]@* ]] ||
            (( ${#__netnice_kept} && ${#funcstack} <= __netnice_depth )); then
            __netnice_depth=${#funcstack}
            __netnice_look "$ZSH_DEBUG_CMD"
        fi
        return $__netnice_status
    }
fi
