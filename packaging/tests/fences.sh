# Reads documents and runs the commands in them, line by line, as they stand. To be sourced.
#
# A fence ```sh is run, each line must end with code 0, or with N where it ends with "# code N".
# `tenuto serve` goes on in the background once it is ready, and so does `systemctl enable --now
# tenuto` where no service manager runs. A fence after a line `<!-- not run: REASON -->` is listed
# with its reason; one after `<!-- run in a guest: REASON -->` is run only where `here` is `guest`.
# The fence ```toml that begins with "# /etc/tenuto/tenuto.toml" is written there. The documents are
# one story, read in order. The caller has set `here` and `scratch`, and `patience` in seconds.
failed=0
ran=0
# Starts what stays in the foreground, and waits for its word.
serve() {
    : >"$scratch/serve"
    tenuto serve >"$scratch/serve" 2>"$scratch/serve.log" </dev/null &
    local left=600
    until grep -q '^ready' "$scratch/serve"; do
        left=$((left - 1))
        [ $left -gt 0 ] && kill -0 $! 2>/dev/null || { cat "$scratch/serve.log"; return 1; }
        sleep 0.1
    done
}
# One line of a fence, found at a place.
try() {
    local place=$1 line=$2 expected=0 code
    case $line in
    *"# code "*) expected=${line##*# code } ;;
    esac
    case $here:$(echo ${line%%#*}) in
    *:"tenuto serve" | namespace:"systemctl enable --now tenuto")
        serve
        code=$?
        ;;
    *)
        timeout "$patience" bash -c "$line" >"$scratch/out" 2>&1 </dev/null
        code=$?
        ;;
    esac
    ran=$((ran + 1))
    if [ "$code" = "$expected" ]; then
        echo "ok: $place: $line"
    else
        failed=$((failed + 1))
        echo "FAILED: $place: $line: code $code, not $expected"
        cat "$scratch/out" 2>/dev/null
    fi
}
read_document() {
    local name number=0 kind= reason= line
    name=$(basename "$1")
    while IFS= read -r line; do
        number=$((number + 1))
        case $kind:$line in
        ':```sh')
            kind=sh
            [ -z "$reason" ] || { kind=text; echo "not run: $name:$number: $reason"; }
            reason=
            ;;
        ':```toml') kind=toml ;;
        ':```'*) kind=text ;;
        ':<!-- not run: '*) reason=${line#<!-- not run: } && reason=${reason% -->} ;;
        ':<!-- run in a guest: '*)
            [ "$here" = guest ] || { reason=${line#<!-- } && reason=${reason% -->}; }
            ;;
        *':```') kind= ;;
        'toml:# /etc/tenuto/tenuto.toml')
            kind=file
            : >/etc/tenuto/tenuto.toml
            ;;
        file:*) echo "$line" >>/etc/tenuto/tenuto.toml ;;
        sh: | 'sh:#'*) ;;
        sh:*) try "$name:$number" "$line" ;;
        ?*:*) ;;
        *) [ -z "$line" ] || reason= ;;
        esac
    done <"$1"
}
