#!/usr/bin/env bash
# Runs QEMU's own tests of block devices, qemu-iotests, with Tenuto where they use QEMU's programs.
#
#   tests/iotests.sh CHECKOUT [server|files] [TEST...]
#
# CHECKOUT is a directory with QEMU's sources, of about the version that is installed; nothing is
# built. Two parts:
#   server   in the place of qemu-nbd a volume serves an empty qcow2 clone of the test's image. When
#            the server ends, the clone is destaged and must be without errors and leaks.
#   files    in the place of qemu-io a volume on the test's qcow2 image takes the commands; then it is
#            destaged and removed, and the test goes on with qemu-img and qemu-io on the file. What a
#            volume is not for (options of its driver, resizes, maps) QEMU's program does itself.
# Prints one line for each test: part, number, result, how many commands went through a volume and
# how many past it, why. Ends with 1 if a test failed that docs/iotests.md does not name.
set -u -o pipefail

usage() {
    echo "usage: tests/iotests.sh CHECKOUT [server|files] [TEST...]" >&2
    exit 2
}

# What is served by us instead of qemu-nbd: see the head.
serve_clone() {
    case " $* " in
    *' --fork '*)
        # It opens its image by options of its own.
        echo "past qemu-nbd $*" >>"$IOTESTS/ways"
        exec "$REAL_NBD" "$@"
        ;;
    esac
    local socket='' image='' pid_file='' name=t$$
    while [ $# -gt 0 ]; do
        case $1 in
        -k) socket=$2 && shift ;;
        -f | -e | -x) shift ;;
        --pid-file=*) pid_file=${1#*=} ;;
        -*) ;;
        *) image=$1 ;;
        esac
        shift
    done
    # The test may remove its image before the server has ended.
    local clone=$IOTESTS/clone-$$.qcow2 base=$IOTESTS/base-$$.img
    cp --sparse=always "$image" "$base"
    if ! "$TENUTO" volume add $name --clone-of "$base" "origin=$clone" export=nbd \
        policy=write-back destage-after=1s >/dev/null 2>"$IOTESTS/said"; then
        echo "past $(head -n 1 "$IOTESTS/said")" >>"$IOTESTS/ways"
        exec "$REAL_NBD" "--pid-file=$pid_file" -t -k "$socket" -f raw -e 42 -x '' "$image"
    fi
    echo volume >>"$IOTESTS/ways"
    # shellcheck disable=SC2064 # their values now
    trap "end_clone $name '$clone' '$base'; exit 0" TERM INT
    ln -sfn "$IOTESTS/run/$name.nbd.sock" "$socket"
    echo $$ >"$pid_file"
    while :; do
        sleep 1000 &
        wait $!
    done
}

end_clone() {
    kill "$(jobs -p)" 2>/dev/null
    bring_home "$1" "$2"
    rm -f "$2" "$3"
}

# Destages, removes the volume, and lets QEMU judge a file that was right before.
bring_home() {
    local said was=${3:-0}
    said=$(timeout 60 "$TENUTO" volume destage "$1" --wait 2>&1 &&
        timeout 60 "$TENUTO" volume rm "$1" 2>&1) || {
        echo "wrong $said" >>"$IOTESTS/ways"
        timeout 60 "$TENUTO" volume rm "$1" "--discard-dirty=$1" >/dev/null 2>&1
    }
    [ "$was" != 0 ] || "$REAL_IMG" check -q -f qcow2 "$2" >"$IOTESTS/said" 2>&1 ||
        echo "wrong qemu-img check: $(tail -n 1 "$IOTESTS/said")" >>"$IOTESTS/ways"
}

# What plays the commands instead of qemu-io.
play() {
    local all=("$@") commands=() image='' format='' plain=yes rest=()
    while [ $# -gt 0 ]; do
        case $1 in
        -c) commands+=("$2") && rest+=(-c "$2") && shift ;;
        -f) format=$2 && shift ;;
        --cache | --aio | -t | -i) shift ;;
        --misalign | -m) rest+=("$1") ;;
        -*) plain= ;;
        *) image=$1 ;;
        esac
        shift
    done
    [ -f "$image" ] && [ "$format" = qcow2 ] || plain=
    local typed=
    if [ -n "$plain" ] && [ ${#commands[@]} -eq 0 ] && [ ! -t 0 ]; then
        typed=$(mktemp "$IOTESTS/typed.XXXXXX")
        cat >"$typed"
        mapfile -t commands <"$typed"
    fi
    local command
    for command in "${commands[@]}"; do
        is_for_a_volume "$command" || plain=
    done
    local name=f$$ said was
    "$REAL_IMG" check -q -f qcow2 "$image" >/dev/null 2>&1
    was=$?
    if [ -n "$plain" ] && said=$(timeout 60 "$TENUTO" volume add $name "origin=$image" format=qcow2 \
        export=nbd policy=write-back destage-after=never 2>&1); then
        echo volume >>"$IOTESTS/ways"
        local uri="nbd+unix:///$name?socket=$IOTESTS/run/nbd.sock" code
        timeout 60 "$REAL_IO" -f raw "${rest[@]}" "$uri" <"${typed:-/dev/null}"
        code=$?
        [ $code -ne 124 ] || echo "wrong no answer within a minute" >>"$IOTESTS/ways"
        bring_home $name "$image" $was
        exit $code
    fi
    if [ -n "$plain" ]; then
        echo "past ${said%%$'\n'*}" >>"$IOTESTS/ways"
    else
        echo "past ${commands[*]:-no commands}" >>"$IOTESTS/ways"
    fi
    exec "$REAL_IO" "${all[@]}" <"${typed:-/dev/stdin}"
}

# Reads, writes, zeroes, discards and flushes, without what only a driver knows.
is_for_a_volume() {
    # shellcheck disable=SC2086 # words
    set -- $1
    case ${1:-} in
    read | readv | aio_read | write | writev | aio_write | discard | flush | aio_flush) ;;
    '' | q | quit) return 0 ;;
    *) return 1 ;;
    esac
    while [ $# -gt 1 ]; do
        shift
        case $1 in
        -P | -l | -s) shift ;;
        -b | -c | -r | -s*) return 1 ;;
        esac
    done
}

# Some builds of QEMU cannot be driven by a test; an emulated processor that has nothing to do is the
# same to tests of disks.
without_qtest() {
    exec "$REAL_QEMU" "${@/#qtest/tcg}"
}

case ${IOTESTS_AS:-} in
qemu-nbd) serve_clone "$@" ;;
qemu-system) without_qtest "$@" ;;
qemu-io) play "$@" ;;
esac

[ $# -ge 1 ] && [ -d "$1/tests/qemu-iotests" ] || usage
checkout=$(cd "$1" && pwd)
shift
parts='server files'
case ${1:-} in server | files) parts=$1 && shift ;; esac
here=$(cd "$(dirname "$0")/.." && pwd)

server_tests='001 002 003 004 005 008 009 010 011 021 032 033 052 077 094 119 145 147 194 208'
files_tests='017 018 023 024 025 028 034 036 037 038 039 042 046 047 050 060 066 080 097 098 107
    108 112 114 121 122 137 138 154 159 174 177 179 188 190 204 214 217 220 244 251 252 253 261
    265 267 271 274 287 290 302 303 313'

TENUTO=${TENUTO_BINARY:-$here/target/release/tenuto}
[ -x "$TENUTO" ] || { echo "no $TENUTO: cargo build --release" >&2; exit 2; }
for program in qemu-img qemu-io qemu-nbd qemu-system-x86_64 qemu-storage-daemon python3; do
    command -v $program >/dev/null || { echo "$program is not installed" >&2; exit 2; }
done
REAL_IMG=$(command -v qemu-img) REAL_IO=$(command -v qemu-io) REAL_NBD=$(command -v qemu-nbd)
REAL_QEMU=$(command -v qemu-system-x86_64)
IOTESTS=$(mktemp -d /tmp/iotests.XXXXXX)
daemon=
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [ -z "$daemon" ] || kill "$daemon"
    wait
    rm -rf "$IOTESTS"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
export TENUTO REAL_IMG REAL_IO REAL_NBD REAL_QEMU IOTESTS TENUTO_CONFIG=$IOTESTS/tenuto.toml NO_COLOR=1
mkdir "$IOTESTS/run" "$IOTESTS/state" "$IOTESTS/stage" "$IOTESTS/shims"
cat >"$TENUTO_CONFIG" <<EOF
[host]
name = "iotests"
group = "$(id -g)"
run-dir = "$IOTESTS/run"
stage-dir = "$IOTESTS/stage"
state-dir = "$IOTESTS/state"
[cache]
path = "$IOTESTS/cache"
size = "1GiB"
ram = "64MiB"
stage = "64MiB"
overlay-ram = "16MiB"
[images]
allow = ["/"]
EOF
for program in qemu-nbd qemu-io qemu-system; do
    printf '#!/bin/sh\nIOTESTS_AS=%s exec bash "%s/tests/iotests.sh" "$@"\n' $program "$here" \
        >"$IOTESTS/shims/$program"
    chmod +x "$IOTESTS/shims/$program"
done
"$TENUTO" serve >"$IOTESTS/log" 2>&1 &
daemon=$!
for _ in $(seq 600); do
    grep -q '^ready' "$IOTESTS/log" && break
    kill -0 $daemon 2>/dev/null || { cat "$IOTESTS/log"; exit 1; }
    sleep 0.1
done

export QEMU_PROG=$REAL_QEMU QSD_PROG QEMU_IMG_PROG=$REAL_IMG
QSD_PROG=$(command -v qemu-storage-daemon)
"$REAL_QEMU" -accel help | grep -q qtest || QEMU_PROG=$IOTESTS/shims/qemu-system
export TEST_DIR=$IOTESTS/scratch SOCK_DIR=$IOTESTS/sock

# What `check` says of one test, with these programs.
check() {
    local nbd=$1 io=$2
    shift 2
    (cd "$checkout/tests/qemu-iotests" && QEMU_NBD_PROG=$nbd QEMU_IO_PROG=$io \
        timeout -k 10 600 ./check "$@" 2>&1 </dev/null)
}

# One test; its line.
one() {
    local part=$1 number=$2 out result why
    : >"$IOTESTS/ways"
    local programs=("$IOTESTS/shims/qemu-nbd" "$REAL_IO") kind=(-raw -nbd)
    [ "$part" = server ] || { programs=("$REAL_NBD" "$IOTESTS/shims/qemu-io") && kind=(-qcow2); }
    out=$(check "${programs[@]}" "${kind[@]}" "$number")
    why=
    case $out in
    *"Passed all 1 "*) result=pass ;;
    *"Not run: "*)
        result='not run'
        why=$(grep "$number .*not run" <<<"$out" | tail -n 1 | sed 's/.*\.\.\.  *//')
        ;;
    *) result=fail why=$(grep '^[-+][^-+]' <<<"$out" | head -n 2 | tr '\n' ' ') ;;
    esac
    if grep -q '^wrong' "$IOTESTS/ways"; then
        result=fail why="$(grep '^wrong' "$IOTESTS/ways" | head -n 1) $why"
    elif [ "$result" = fail ] &&
        [[ $(check "$REAL_NBD" "$REAL_IO" "${kind[@]}" "$number") != *"Passed all 1 "* ]]; then
        result='not applicable' why="fails with QEMU's own programs too: $why"
    fi
    [ -z "${IOTESTS_KEEP:-}" ] || { echo "$out"; cat "$IOTESTS/ways"; } \
        >"$IOTESTS_KEEP/$part-$number" 2>&1
    printf '%s %s: %s; %d through a volume, %d past it; %s\n' "$part" "$number" "$result" \
        "$(grep -c '^volume' "$IOTESTS/ways")" "$(grep -c '^past' "$IOTESTS/ways")" "$why"
    [ "$result" != fail ] || is_known "$part" "$number"
}

# A failure that is listed with its reason.
is_known() {
    grep -q "^| $1 | [0-9, ]*\b$2\b[0-9, ]* | fail" "$here/docs/iotests.md" 2>/dev/null
}

failed=0
for part in $parts; do
    tests="$*"
    [ -n "$tests" ] || { [ "$part" = server ] && tests=$server_tests || tests=$files_tests; }
    for number in $tests; do
        one "$part" "$number" || failed=1
    done
done
exit $failed
