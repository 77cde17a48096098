#!/bin/sh
# Writes the King James Bible as plain text: `<|endoftext|>`, a heading and one verse a line for each
# chapter. Needs Debian's packages bible-kjv and bible-kjv-text.
#
#   sh prepare.sh [OUT]        (OUT defaults to kjv.txt)
set -eu
out=${1:-kjv.txt}

if ! command -v bible >/dev/null; then
    echo "prepare.sh: no 'bible' program; apt-get install bible-kjv bible-kjv-text" >&2
    exit 1
fi

# `bible -l0` prints, for each chapter, a heading between blank lines and then the numbered verses.
bible -l0 gen1:1-rev22:21 | awk '
    /^$/     { next }
    /^ +[0-9]+ / { sub(/^ +[0-9]+ /, ""); print; next }
             { printf "%s<|endoftext|>%s\n\n", (NR > 2 ? "\n" : ""), $0 }
' >"$out.part"
mv "$out.part" "$out"

verses=$(grep -c . "$out")
echo "$out: $(wc -c <"$out") bytes, $((verses - $(grep -c '^<|endoftext|>' "$out"))) verses"
