# enter.sh ROOT TOOLCHAIN CLONE COMMAND…: in a mount namespace of its own; the mounts end with it.
set -eu
root=$1 toolchain=$2 clone=$3
shift 3
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t bpf bpf "$root/sys/fs/bpf"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$toolchain" "$root/opt/rust"
mount -o remount,bind,ro "$root/opt/rust"
exec chroot "$root" sh -c 'cd "/$1" && shift && exec "$@"' sh "$clone" "$@"
