#!/usr/bin/env bash
# Runs a command as one step of `make demo`. Shows its title and the time of the last run, then the time that it took.
# The command's output goes to a file; the end of the file is shown if the command fails.
#
#   engines/python/step.sh FOLDER NAME TITLE COMMAND ..     FOLDER holds the times and the output, in files named NAME
set -uo pipefail
folder=$1 name=$2 title=$3
shift 3
mkdir -p "$folder"

duration() { if [ "$1" -ge 60 ]; then echo "$(($1 / 60)) min $(($1 % 60)) s"; else echo "$1 s"; fi; }

last=
if [[ $(cat "$folder/$name" 2> /dev/null) =~ ^[0-9]+ ]]; then last=" (the last time $(duration "${BASH_REMATCH[0]}"))"; fi
[ -t 2 ] && printf '%s ..%s' "$title" "$last" >&2
begun=$SECONDS
"$@" > "$folder/$name.log" 2>&1
status=$?
[ -t 2 ] && printf '\r\033[2K' >&2
if [ "$status" != 0 ]; then
  echo "$title: failed with exit code $status; the end of $folder/$name.log:" >&2
  tail -n 30 "$folder/$name.log" >&2
  exit "$status"
fi
echo "$((SECONDS - begun))" > "$folder/$name"
echo "$title: $(duration $((SECONDS - begun)))$last" >&2
