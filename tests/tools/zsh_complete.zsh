#!/usr/bin/env zsh
# zsh_complete.zsh <folder with _ingot> <command line>
# Types the line and a tab into an interactive zsh, and prints what its completion system is offered, a word a line.
zmodload zsh/zpty || exit 2
folder=$1 typed=$2
setup=$(mktemp)
trap 'rm -f $setup' EXIT
cat > $setup <<'END'
PROMPT=
autoload -Uz compinit
compinit -u -D
bindkey '^M' undefined
bindkey '^J' undefined
bindkey '^I' complete-word
zstyle ':completion:*' insert-tab false
mark() { print -r -- '<<mark>>' }
compprefuncs=(mark)
comppostfuncs=(mark exit)
# Prints the words that are added; calls that only filter an array pass through.
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return
  fi
  typeset -a offered
  builtin compadd -O offered "$@"
  (( $#offered )) && print -rl -- $offered
  builtin compadd "$@"
}
print ready
END
zpty shell zsh -f -i
zpty -w shell "fpath=(${(q)folder} \$fpath); source $setup"
line=
for i in {1..20}; do
  zpty -r shell line || exit 2
  [[ $line == *ready* && $line != *print* ]] && break
done
zpty -w -n shell "$typed"$'\t'
integer marks=0
while zpty -r shell line; do
  line=${line//$'\r'/}
  line=${line%$'\n'}
  if [[ $line == *'<<mark>>'* ]]; then
    (( ++marks == 2 )) && exit 0
  elif (( marks == 1 )) && [[ -n $line ]]; then
    print -r -- $line
  fi
done
exit 2
