#!/bin/sh
# assemble.sh WORK DISK MEBIBYTES LAYERS ARCHIVE...: makes the guest's disk from folders laid over each other and images.
#
# LAYERS are folders as overlayfs wants them (topmost first, separated by colons). Runs in mount and PID namespaces of its
# own, so nothing that it mounts or starts outlives it. The guest's own containerd imports the images here, chrooted: inside
# an emulated guest that takes ten times as long.
set -eu
work=$1 disk=$2 mebibytes=$3 layers=$4
shift 4

mkdir -p "$work/upper" "$work/scratch" "$work/root" "$work/containerd"
mount -t overlay overlay -o "lowerdir=$layers,upperdir=$work/upper,workdir=$work/scratch" "$work/root"
root=$work/root
# containerd's snapshots are overlays themselves, which cannot lie on one.
mkdir -p "$root/var/lib/containerd"
mount --bind "$work/containerd" "$root/var/lib/containerd"

mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"

chroot "$root" containerd > "$work/containerd.log" 2>&1 &
containerd=$!
tries=0
until chroot "$root" ctr version > /dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 150 ] || ! kill -0 "$containerd"; then
        tail -n 20 "$work/containerd.log" >&2
        exit 1
    fi
    sleep 0.2
done
for archive in "$@"; do
    touch "$root/tmp/image.tar"
    mount --bind "$archive" "$root/tmp/image.tar"
    chroot "$root" ctr --namespace k8s.io images import --snapshotter overlayfs /tmp/image.tar
    umount "$root/tmp/image.tar"
done
kill "$containerd"
wait "$containerd" || true

umount -R "$root/sys" "$root/dev"
umount "$root/proc" "$root/tmp" "$root/run"
mke2fs -q -t ext4 -L lab-root -m 0 -E lazy_itable_init=1,root_owner=0:0 -d "$root" "$disk" "${mebibytes}M"
