#!/bin/busybox sh
# PID 1 of a lab guest until its root disk is mounted.
busybox mount -t devtmpfs devtmpfs /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
for module in /modules/*; do
    busybox insmod "$module"
done
until disk=$(busybox findfs LABEL=lab-root); do
    busybox sleep 0.1
done
busybox mount -t ext4 -o rw "$disk" /root
for folder in dev proc sys; do
    busybox mount --move "/$folder" "/root/$folder"
done
exec busybox switch_root /root /usr/local/lib/lab/init
