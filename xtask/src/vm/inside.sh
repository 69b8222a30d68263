# Runs as root in the guest. /mnt is the folder shared with the host. The root folder is the host's,
# read-only, with a temporary layer on top. $1 is the number of this guest; the exit status is written
# to /mnt/guest-$1/status.
share=/mnt
number=$1
own=$share/guest-$1
modules='sch_htb sch_fq_codel sch_fq sch_ingress sch_netem sch_tbf cls_bpf cls_u32 cls_matchall act_mirred
    act_gact act_bpf ifb veth dummy tun bridge 8021q tcp_bbr mptcp_diag af_packet'

# Prints a line for each module that this kernel lacks; a test that needs one reports it.
for module in $modules; do
    modprobe --quiet "$module" || grep -q "/$module.ko" "/lib/modules/$(uname -r)/modules.builtin" ||
        echo "inside: no module $module"
done
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
sysctl -q -w net.ipv4.tcp_congestion_control=cubic net.ipv4.tcp_allowed_congestion_control='reno cubic bbr'
ip link set lo up

# A systemd in its own process namespace, at the root of the cgroup tree. Its private socket accepts
# only callers of that namespace, so the two commands go through nsenter.
start_systemd() {
    mkdir -p /run/systemd/system /run/netnice-vm/bin
    printf '[Unit]\nDescription=Nothing but what the tests start\n' >/run/systemd/system/netnice-vm.target
    container=vm setsid unshare --fork --kill-child --pid --mount-proc --propagation unchanged \
        /lib/systemd/systemd --unit=netnice-vm.target --log-target=null --show-status=no </dev/null >/dev/null 2>&1 &
    parent=$!
    systemd=
    for _ in $(seq 100); do
        systemd=$(pgrep -P "$parent" -x systemd) && break
        sleep 0.1
    done
    [ -n "$systemd" ] || return 1
    for program in systemctl systemd-run; do
        printf '#!/bin/sh\nexec nsenter --target %s --pid --mount /bin/%s "$@"\n' "$systemd" "$program" \
            >"/run/netnice-vm/bin/$program"
        chmod +x "/run/netnice-vm/bin/$program"
    done
    PATH=/run/netnice-vm/bin:$PATH
    for _ in $(seq 100); do
        case $(systemctl is-system-running 2>/dev/null) in running | degraded) return 0 ;; esac
        sleep 0.3
    done
    return 1
}

# run_tests GUESTS PROFILE ROOT STORE FILTER...: runs this guest's part of the system tests, as
# cargo-nextest runs them on the host.
run_tests() {
    guests=$1 profile=$2 root=$3 store=$4
    shift 4
    cd "$root" || return 1
    mount --bind "$own/nextest" "$store" || return 1
    "$share/cargo-nextest" nextest run --profile "$profile" --no-tests=pass --partition "slice:$number/$guests" \
        --workspace-remap "$root" --target-dir-remap "$share/target" \
        --cargo-metadata "$share/metadata.json" --binaries-metadata "$share/binaries.json" "$@"
}

# Tests of real units fail without it.
start_systemd || echo "inside: systemd did not start"
NETNICE_SYSTEMD=1
# Tests may set the clock here.
NETNICE_GUEST=1
export NETNICE_SYSTEMD NETNICE_GUEST
NETNICE_BIN_DIR=$share/programs
export NETNICE_BIN_DIR PATH
(. "$share/job")
status=$?
echo $status >"$own/status"
sync
exit $status
