# Tries the packages in first/ and later/ on the machine that it runs on, which is removed afterwards.
# (grep -q would end before the program that it reads from, and that program would fail.)
set -eu -o pipefail

say() { echo "trial: $*"; }
fail() { say "FAILED: $*"; exit 1; }

# Lists the files and groups that a package could leave, except the data of apt and dpkg, logs,
# caches and the folders of this trial.
list_state() {
	find / -xdev \( -path /root -o -path /tmp -o -path /var/cache -o -path /var/lib/apt -o -path /var/log \
		-o -path /var/lib/dpkg \) -prune -o -print | sort
	getent group | sort
}

prepare() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get --quiet update
	apt-get --quiet install --yes --no-install-recommends systemd iproute2 ethtool iperf3 libcap2-bin \
		gcc libc6-dev pkgconf strace
	list_state >before
	dpkg --install first/*.deb
	dpkg --verify netnice libnetnice0 libnetnice-dev
	getent group netnice >/dev/null || fail "no group netnice"
	check_peer
	say "the C library"
	ldconfig -p | grep libnetnice.so.0 >/dev/null || fail "the library is not known"
	# shellcheck disable=SC2046
	cc -o limit /usr/share/doc/libnetnice-dev/examples/limit.c $(pkg-config --cflags --libs netnice)
	ldd limit | grep libnetnice.so.0 >/dev/null || fail "the example is not linked with the library"
	man=$(zcat /usr/share/man/man3/netnice_set.3.gz | head -n 1)
	[ -n "$man" ] || fail "no manual page"

	say "units"
	systemd-analyze verify --man=no /usr/lib/systemd/system/netniced.service /usr/lib/systemd/system/netniced.socket
	systemd-analyze verify --man=no /usr/lib/systemd/system/netnice-peer.service
	systemd-analyze security --offline=true --no-pager /usr/lib/systemd/system/netniced.service | tail -n 1
	systemd-analyze security --offline=true --no-pager /usr/lib/systemd/system/netnice-peer.service | tail -n 1
	# The rest happens in a network of its own.
	exec unshare --net bash trial.sh use
}

# Checks what the package installs for netnice-peer.
check_peer() {
	local shell man
	shell=$(getent passwd netnice-peer | cut -d : -f 7)
	[ "$shell" = /usr/sbin/nologin ] || fail "the user netnice-peer has the shell '$shell'"
	getent group netnice-peer >/dev/null || fail "no group netnice-peer"
	[ -d /etc/netnice/peer ] || fail "no folder for certificates"
	setpriv --reuid netnice-peer --regid netnice-peer --clear-groups netnice-peer --help >/dev/null ||
		fail "the user netnice-peer cannot run netnice-peer"
	man=$(zcat /usr/share/man/man8/netnice-peer.8.gz | head -n 1)
	[ -n "$man" ] || fail "no manual page of netnice-peer"
	netnice peer issue --folder laboratory near far
	[ "$(ls laboratory | wc -l)" = 6 ] || fail "the certificates of two hosts and an authority are not six files"
}

# Prints the system calls that these names and @groups mean.
system_calls() {
	local word
	for word in "$@"; do
		case $word in
		@*) system_calls $(systemd-analyze syscall-filter --no-pager "$word" | sed 's/#.*//' | tail -n +2) ;;
		*) echo "$word" ;;
		esac
	done
}

# Fails unless the service allows every system call that the daemon has made.
check_calls() {
	local filter
	filter=$(sed -n 's/^SystemCallFilter=//p' /usr/lib/systemd/system/netniced.service)
	system_calls @default $filter | sort -u >allowed
	sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' calls | sort -u >called
	say "$(wc -l <called) kinds of system calls"
	[ "$(wc -l <called)" -gt 30 ] || fail "strace recorded too few system calls"
	[ -z "$(comm -23 called allowed)" ] || fail "the service may not call $(comm -23 called allowed)"
	check_words RestrictNamespaces "$(grep -o 'CLONE_NEW[A-Z]*' calls | sed 's/CLONE_NEW//' | tr 'A-Z' 'a-z')"
	check_words RestrictAddressFamilies "$(grep -o 'socket(AF_[A-Z0-9]*' calls | sed 's/socket(//')"
}

# Fails unless the setting $1 of the service allows every word of $2.
check_words() {
	local word allowed
	allowed=" $(sed -n "s/^$1=//p" /usr/lib/systemd/system/netniced.service) "
	[ -n "$2" ] || fail "the daemon used nothing that $1 restricts"
	for word in $(sort -u <<<"$2"); do
		[[ $allowed == *" $word "* ]] || fail "$1 does not allow $word"
	done
}

far() { nsenter --net=/run/netns/far "$@"; }

# Starts the daemon as its service does: with the socket from its parent, and only its capabilities.
start() {
	local caps
	caps=$(sed -n 's/^CapabilityBoundingSet=//p' /usr/lib/systemd/system/netniced.service |
		tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
	mkdir -p /run/netnice
	systemd-socket-activate -l /run/netnice/netnice.sock \
		setpriv --bounding-set "-all,$caps" --no-new-privs strace -D -f -qq -o calls /usr/sbin/netniced &
	for _ in $(seq 50); do
		[ ! -S /run/netnice/netnice.sock ] || return 0
		sleep 0.1
	done
	fail "the daemon's socket does not appear"
}

# Prints the bytes that reached the far end. (/sys shows the network namespace of its mount, /proc the
# reader's.)
arrived() { far awk '$1 == "far0:" { print $2 }' /proc/net/dev; }

# Measures the rate at the far end every 100 ms, and prints the highest one in kbit/s.
fastest() {
	local bytes then now rate most=0 last start
	last=$(arrived)
	then=${EPOCHREALTIME/./}
	start=$then
	while [ "$then" -lt $((start + 10000000)) ]; do
		sleep 0.1
		bytes=$(arrived)
		now=${EPOCHREALTIME/./}
		rate=$(((bytes - last) * 8000 / (now - then)))
		[ "$rate" -le "$most" ] || most=$rate
		last=$bytes
		then=$now
	done
	echo "$most"
}

use() {
	ip link set lo up
	ip netns add far
	ip link add near0 type veth peer name far0 netns far
	ip address add 10.9.0.1/24 dev near0
	far ip address add 10.9.0.2/24 dev far0
	ethtool -K near0 tso off gso off gro off >/dev/null
	far ethtool -K far0 tso off gso off gro off >/dev/null
	ip link set near0 up
	far ip link set far0 up
	ip -oneline link | sort >links
	tc qdisc show | sort >queues

	start
	netnice doctor || fail "netnice doctor reports a missing feature"
	far iperf3 --server --daemon
	iperf3 --client 10.9.0.2 --congestion cubic --time 60 >/dev/null &
	local client=$!
	sleep 1
	netnice set pid:$client --up 20mbit
	sleep 1
	say "upgrade while the limit is in force"
	fastest >most &
	local meter=$!
	sleep 2
	./limit 1000000 true || fail "the example of the library"
	dpkg --install later/*.deb
	check_calls
	ip link show nn0 >/dev/null || fail "the upgrade removed the limit"
	sleep 1
	netnice show
	netnice show --json | grep "pid:$client" >/dev/null || fail "the new daemon does not show the limit"
	wait $meter
	say "fastest 100 ms while upgrading: $(cat most) kbit/s of 20000"
	[ "$(cat most)" -le 22000 ] || fail "more than 110 % of the limit"
	[ "$(cat most)" -ge 18000 ] || fail "there was too little traffic"

	say "removal while the limit is in force"
	dpkg --remove netnice libnetnice-dev libnetnice0
	kill $client
	wait $client || true
	end_server
	ip -oneline link | sort | diff links - || fail "links are left"
	tc qdisc show | sort | diff queues - || fail "queues are left"
	! grep -q netnice /proc/mounts || fail "a mount is left"
	dpkg --purge netnice libnetnice-dev libnetnice0
	ip netns delete far
	list_state | diff before - || fail "files or groups are left"
	say "holds"
}

end_server() {
	local pid
	for pid in $(ip netns pids far); do kill "$pid"; done
}

case "${1-}" in
use) use ;;
*) prepare ;;
esac
