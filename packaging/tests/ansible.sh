#!/bin/bash
# Runs the Ansible role as an administrator does, over ssh, on a Debian guest under systemd:
#
#   packaging/tests/ansible.sh BINARY SCRATCH
#
# Builds two versions of the package from BINARY and plays packaging/ansible/site.yml against the
# guest, which QEMU emulates and makes reachable on the loopback interface. Says what held as lines
# `ok: …`, and ends with code 1 and the cause at the first thing that did not, with code 2 if it
# cannot prepare. What it makes lies in SCRATCH, 1 GB, which the caller removes.
#
# Needs root, for the owners of the files of the guest, and a Debian with the packages
#   ansible-core openssh-client qemu-system-x86 linux-image-cloud-amd64 busybox-static cpio e2fsprogs
#   dpkg-dev binutils
# beside those that the guest is made of (`parts` below). Nothing is downloaded. KVM is used where
# it works, and not needed.
set -u -o pipefail
parts="systemd dash debianutils dpkg bash coreutils util-linux grep sed mawk procps tar gzip diffutils
    findutils hostname libc-bin apt python3 python3-apt openssh-server openssh-sftp-server iproute2
    libnbd-bin"
[ $# = 2 ] || { echo "usage: packaging/tests/ansible.sh BINARY SCRATCH" >&2; exit 2; }
packaging=$(realpath "$(dirname "$0")/..")
# shellcheck source=packaging/tests/guest.sh
. "$packaging/tests/guest.sh"
take_places "$1" "$2"
PATH=$PATH:/usr/sbin:/sbin
need ansible-playbook ssh ssh-keygen
# shellcheck disable=SC2086 # a list of words
must dpkg-query -W $parts >"$scratch/parts"
# A path of a socket is 108 bytes at most, and SCRATCH may be long.
sockets=$(must mktemp -d /tmp/tenuto-XXXXXX) || exit 2
qemu=
finish() {
    [ ! -e "$sockets/ssh" ] || ssh -F "$scratch/ssh_config" -O exit guest 2>/dev/null
    [ -z "$qemu" ] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null
    rm -rf "$sockets"
}
trap finish EXIT
trap 'exit 2' INT TERM HUP

say() { echo "ok: $*"; }
fail() {
    echo "FAILED: $*"
    [ ! -e "$scratch/play.log" ] || tail -n 60 "$scratch/play.log"
    guest "journalctl --no-pager -u tenuto | tail -n 40" || tail -n 40 "$scratch/console"
    exit 1
}

# --- the guest -------------------------------------------------------------------------------

# The newest kernel of the cloud flavour, and what it needs to reach its disk and its network.
modules="$disk_modules net/core/failover drivers/net/net_failover drivers/net/virtio_net"
hardware="-m 512"
words="console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests nosoftlockup net.ifnames=0"
make_initramfs() {
    local kernel from name names=
    for kernel in /boot/vmlinuz-*; do
        from=/lib/modules/${kernel#/boot/vmlinuz-}/kernel
        [ ! -r "$kernel" ] || [ ! -e "$from/drivers/block/virtio_blk.ko" ] ||
            must ln -sf "$kernel" "$scratch/kernel"
    done
    kernel=$(must readlink "$scratch/kernel") || exit 2
    from=/lib/modules/${kernel#/boot/vmlinuz-}/kernel
    for name in $modules; do
        must cp "$from/$name.ko" "$scratch/initramfs/"
        names="$names ${name##*/}"
    done
    make_init "$names" "" /lib/systemd/systemd
}
make_guest() {
    local root=$scratch/root key
    # shellcheck disable=SC2086 # a list of words
    must "$packaging/tests/root.sh" "$root" $parts
    for key in host user; do
        rm -f "$scratch/$key" "$scratch/$key.pub"
        must ssh-keygen -q -t ed25519 -N '' -f "$scratch/$key"
    done
    must install -D -m 600 "$scratch/host" "$root/etc/ssh/key"
    must install -D -m 600 "$scratch/user.pub" "$root/root/.ssh/authorized_keys"
    must mkdir -p "$root"/mnt/nfs/vms "$root"/data "$root/etc/systemd/system"
    must truncate -s 32M "$root"/mnt/nfs/vms/desk-001.img "$root/data/kept.img"
    head -c 4M /dev/urandom >"$root/root/pattern"
    cat >"$root/etc/ssh/reached" <<SSHD
HostKey /etc/ssh/key
PermitRootLogin prohibit-password
UsePAM no
PidFile none
Subsystem sftp /usr/lib/openssh/sftp-server
SSHD
    cat >"$root/etc/systemd/system/reached.service" <<UNIT
[Unit]
DefaultDependencies=no
Requires=basic.target
After=basic.target
[Service]
RuntimeDirectory=sshd
ExecStartPre=/bin/ip address add 10.0.2.15/24 dev eth0
ExecStartPre=/bin/ip link set eth0 up
ExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/reached
UNIT
    # What this guest has no use for, and an emulated processor no time.
    for unit in dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
        modprobe@.service systemd-random-seed.service systemd-sysctl.service systemd-udevd.service \
        systemd-sysusers.service systemd-modules-load.service systemd-udev-trigger.service; do
        must ln -s /dev/null "$root/etc/systemd/system/$unit"
    done
    # Python's own files as this machine has compiled them; packages do not hold these.
    find /usr/lib/python3 /usr/lib/python3.* -name '*.pyc' | tar -C / -c -P --transform 's,^/,,' -T - |
        tar -C "$root" -x --keep-directory-symlink || must false "# compiled files of Python"
    # Ansible sends each module with its libraries as source in an archive. Compiling them again for
    # each task is half of the time of a play here.
    rm -f "$root"/usr/lib/python3.*/sitecustomize.py
    cat >"$root/usr/lib/python3/dist-packages/sitecustomize.py" <<'PYTHON'
import hashlib, marshal, os, zipimport
compile_source = zipimport._compile_source
def compiled_before(path, source):
    place = "/run/compiled-" + hashlib.sha256(source).hexdigest()
    try:
        with open(place, "rb") as file:
            return marshal.load(file)
    except OSError:
        code = compile_source(path, source)
        with open(f"{place}.{os.getpid()}", "wb") as file:
            marshal.dump(code, file)
        os.rename(file.name, place)
        return code
zipimport._compile_source = compiled_before
PYTHON
    must truncate -s 4G "$scratch/disk"
    must mkfs.ext4 -q -F -b 4096 -d "$root" "$scratch/disk"
}
guest() { ssh -n -F "$scratch/ssh_config" guest "$@"; }
# Waits for a condition: seconds, then a command.
until_true() {
    local left=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] && kill -0 $qemu 2>/dev/null || return 1
        sleep 0.2
    done
}
# QEMU takes a port that is free, and its monitor tells which.
forwarded_port() {
    python3 - "$sockets/monitor" <<'PYTHON'
import re, socket, sys
monitor = socket.socket(socket.AF_UNIX)
monitor.settimeout(10)
monitor.connect(sys.argv[1])
monitor.sendall(b"info usernet\n")
said = ""
while not (found := re.search(r"HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)", said)):
    said += monitor.recv(4096).decode() or sys.exit("the monitor has gone")
print(found[1])
PYTHON
}
start_guest() {
    local port
    machine "systemd.unit=reached.service systemd.show_status=no" -accel "$acceleration" \
        -serial "file:$scratch/console" -monitor "unix:$sockets/monitor,server=on,wait=off" \
        -drive "if=none,id=disk,format=raw,file=$scratch/disk" -device virtio-blk-pci,drive=disk \
        -netdev user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22 \
        -device virtio-net-pci,netdev=net,romfile= </dev/null 2>"$scratch/qemu.log" &
    qemu=$!
    until_true 30 test -S "$sockets/monitor" || { cat "$scratch/qemu.log"; exit 2; }
    port=$(must forwarded_port) || exit 2
    echo "guest $(cat "$scratch/host.pub")" >"$scratch/known"
    cat >"$scratch/ssh_config" <<SSH
Host guest
    HostName 127.0.0.1
    Port $port
    HostKeyAlias guest
    User root
    IdentityFile $scratch/user
    IdentitiesOnly yes
    BatchMode yes
    ConnectTimeout 30
    StrictHostKeyChecking yes
    UserKnownHostsFile $scratch/known
    GlobalKnownHostsFile none
    ControlMaster auto
    ControlPersist 600
    ControlPath $sockets/ssh
    LogLevel ERROR
SSH
    until_true 120 guest true || { tail -n 40 "$scratch/console"; echo "the guest is not reached"; exit 2; }
}

# --- the play --------------------------------------------------------------------------------

# One run of the play: what its recap has to say of changes, then options.
play() {
    local expected=$1 code
    shift
    variables >"$scratch/vars.yml"
    # Inside SCRATCH and nowhere else, whoever runs it.
    (cd "$scratch" && HOME=$scratch ANSIBLE_CONFIG=$scratch/ansible.cfg ansible-playbook \
        -i "$scratch/inventory" -e "@$scratch/vars.yml" "$@" "$packaging/ansible/site.yml") \
        >"$scratch/play.log" 2>&1 </dev/null
    code=$?
    case $expected in
    refused) [ $code = 2 ] || fail "a play that had to be refused ended with code $code" ;;
    *)
        [ $code = 0 ] || fail "a play ended with code $code"
        grep -qE "changed=$expected .*failed=0" "$scratch/play.log" ||
            fail "the recap of a play does not match changed=$expected"
        ;;
    esac
}
told() { tr -d '\\\n' <"$scratch/play.log" | grep -qF -- "$1" || fail "a play did not say: $1"; }
# What the plays differ in: the package, the RAM of the cache, a key of the volume and its value,
# directories that the service may write besides, and a volume there.
first=$scratch/tenuto_0.1.0-1_$(dpkg --print-architecture).deb
second=$scratch/tenuto_0.1.0-2_$(dpkg --print-architecture).deb
package=$first ram=16MiB key=limit iops=100000 paths='' kept=''
variables() {
    cat <<YAML
tenuto_package: "$package"
tenuto_cache: {path: /var/lib/tenuto/cache, size: 128MiB, ram: $ram, stage: 16MiB, overlay-ram: 16MiB}
tenuto_defaults: {destage-after: 1h}
tenuto_paths: [$paths]
tenuto_volumes:
  - {name: desk-001, origin: /mnt/nfs/vms/desk-001.img, format: raw, policy: write-back,
     $key: {iops: "$iops"}}
$kept
YAML
}

# --- what the guest has ----------------------------------------------------------------------

uri="nbd+unix:///?socket=/run/tenuto/desk-001.nbd.sock"
# What a command in the guest says, and has to say.
has() {
    local said
    said=$(guest "$1" 2>&1)
    [ "$said" = "$2" ] || fail "$3: $said, not $2"
}
pid="systemctl show -p MainPID --value tenuto"
installed="dpkg-query -W -f '\${Version}' tenuto"
sum="sha256sum /etc/tenuto/tenuto.toml"
# A line of one volume's document, and of the daemon's.
of_volume() { echo "tenuto volume show desk-001 --json | sed -n 's/^ *\"$1\": \"*\([^\",]*\)\"*,*$/\1/p'"; }
of_daemon() { echo "tenuto status --json | sed -n '/^  \"$1\"/,/}/s/^ *\"$2\": \([0-9]*\),*$/\1/p'"; }
# What was written and flushed, and is nowhere but in the cache and the stage.
dirty_data_is_there() {
    has "nbdcopy '$uri' - | head -c 4194304 | cmp - /root/pattern && echo same" same "the data $1"
    has "$(of_volume state)" dirty "the state of the volume $1"
    has "ls -i /dev/shm/tenuto-*" "$stage" "the stage $1"
}

must "$packaging/deb.sh" --binary "$binary" --version 0.1.0-1 --out "$scratch" >"$scratch/deb.log" 2>&1
must "$packaging/deb.sh" --binary "$binary" --version 0.1.0-2 --out "$scratch" >"$scratch/deb.log" 2>&1
make_initramfs
try_kvm
make_guest
start_guest
echo "[kvm]
guest ansible_user=root ansible_python_interpreter=/usr/bin/python3" >"$scratch/inventory"
echo "[defaults]
nocows = true
retry_files_enabled = false
local_tmp = $scratch/ansible-local
[connection]
pipelining = true
[ssh_connection]
ssh_args = -F $scratch/ssh_config
control_path = $sockets/ssh" >"$scratch/ansible.cfg"
say "a guest under systemd is reached over ssh, by ${acceleration%,*} ($SECONDS s)"

play "[1-9][0-9]*"
has "systemctl is-active tenuto" active "the service"
has "systemctl is-enabled tenuto" enabled "the service"
has "$(of_volume iops)" "$iops" "the limit of the volume"
has "$(of_daemon ram size_bytes)" $((16 << 20)) "the RAM of the cache"
has "nbdcopy '$uri' - | wc -c" $((32 << 20)) "the disk"
say "the role installs, configures and starts, and the volume is served ($SECONDS s)"

play 0
say "a second run changes nothing ($SECONDS s)"

guest "nbdcopy --flush /root/pattern '$uri'" || fail "nothing can be written"
stage=$(guest "ls -i /dev/shm/tenuto-*")
before=$(guest "$pid")
file=$(guest "$sum")
dirty_data_is_there "as written"
package=$second key=limits play refused
told "limits: unknown key"
has "$installed" 0.1.0-1 "the package after a refusal"
has "$sum" "$file" "the configuration after a refusal"
has "$pid" "$before" "the daemon after a refusal"
say "a wrong configuration is refused before the upgrade beside it restarts the daemon ($SECONDS s)"

iops=70000
package='' play 2
has "$(of_volume iops)" "$iops" "the limit of the volume after a change"
has "$pid" "$before" "the daemon after a change"
say "another value of a volume is applied by a reload, and the daemon runs on ($SECONDS s)"

ram=24MiB
package=$second play 3
has "$installed" 0.1.0-2 "the package after an upgrade"
[ "$(guest "$pid")" != "$before" ] || fail "the daemon was not restarted by an upgrade"
has "$(of_daemon ram size_bytes)" $((24 << 20)) "the RAM of the cache after a restart"
dirty_data_is_there "after an upgrade and a restart"
say "an upgrade and a change that needs a restart keep dirty data and the stage ($SECONDS s)"

paths=/data
kept="  - {name: kept, origin: /data/kept.img, format: raw, policy: write-through}"
package='' play 4
has "nbdcopy 'nbd+unix:///?socket=/run/tenuto/kept.nbd.sock' - | wc -c" $((32 << 20)) "the second disk"
dirty_data_is_there "after a restart for another directory"
say "a volume in a directory that the service may not write by itself is served ($SECONDS s)"

guest "tenuto -q volume destage desk-001 --wait && tenuto -q volume rm desk-001 && \
    head -c 4194304 /mnt/nfs/vms/desk-001.img | cmp - /root/pattern" ||
    fail "the image is not what was written"
say "destaged, the image has what was written ($SECONDS s)"
