"""The arguments that mkfs is called with.

The features are fixed here and not left to the tools' defaults: a new mkfs makes file systems that the kernel of
another tenant node, or the same one after a rollback, cannot mount. What is here is mountable since kernel 4.18.
Nothing is discarded: the disk is blank, and a discard of a large thin disk takes minutes.

The surprising fact: an ext4 and a btrfs may end before their disk does, so that nothing of them lies where the mark of
a started format is. Only then does the mark outlive a mkfs that is killed. Growth gives them the rest.
"""

from __future__ import annotations

MIB = 1024 * 1024
BLOCK_BYTES = 4096

EXT4_FEATURES = (
    "has_journal",
    "ext_attr",
    "resize_inode",
    "dir_index",
    "filetype",
    "extent",
    "64bit",
    "flex_bg",
    "sparse_super",
    "large_file",
    "huge_file",
    "dir_nlink",
    "extra_isize",
    "metadata_csum",
)
"""The complete list, without what /etc/mke2fs.conf would add (orphan_file needs kernel 5.15)."""
XFS_METADATA = "crc=1,finobt=1,rmapbt=0,reflink=1,bigtime=0,inobtcount=0"
XFS_INODES = "sparse=1,nrext64=0"
BTRFS_FEATURES = "extref,skinny-metadata,no-holes"
BTRFS_RUNTIME_FEATURES = "free-space-tree"
"""Later versions of mkfs.btrfs count it among the features, and take it here too."""

_EXT4 = ("mkfs.ext4", "-F", "-q", "-b", str(BLOCK_BYTES), "-I", "256", "-m", "0")
_EXT4_GROUP_BYTES = 8 * BLOCK_BYTES * BLOCK_BYTES
_EXT4_TAIL_BYTES = 16 * MIB
"""The head of a group with copies of superblock and descriptors is shorter than this less 1 MiB, up to 16 TiB."""


def command(device: str, fs_type: str, options: tuple[str, ...], *, size_bytes: int) -> tuple[str, ...]:
    """Program and arguments that make a file system on the device of that size, whatever is there."""
    return _COMMANDS[fs_type](device, size_bytes, options)


def _ext4(device: str, size_bytes: int, options: tuple[str, ...]) -> tuple[str, ...]:
    features = ("-O", ",".join(("none", *EXT4_FEATURES)), "-E", "nodiscard,lazy_itable_init=1")
    return *_EXT4, *features, *options, device, str(ext4_bytes(size_bytes) // BLOCK_BYTES)


def _xfs(device: str, _size_bytes: int, options: tuple[str, ...]) -> tuple[str, ...]:
    return "mkfs.xfs", "-f", "-q", "-K", "-m", XFS_METADATA, "-i", XFS_INODES, *options, device


def _btrfs(device: str, size_bytes: int, options: tuple[str, ...]) -> tuple[str, ...]:
    features = ("-O", BTRFS_FEATURES, "-R", BTRFS_RUNTIME_FEATURES, "--csum", "crc32c")
    layout = (
        "-s",
        str(BLOCK_BYTES),
        "-n",
        "16384",
        "-d",
        "single",
        "-m",
        "dup",
        "-b",
        str(btrfs_bytes(size_bytes)),
    )
    return "mkfs.btrfs", "-f", "-q", "-K", *features, *layout, *options, device


def ext4_bytes(disk_bytes: int) -> int:
    """What an ext4 is made to span: without a last group that is so short that the mark lies in its head."""
    tail = disk_bytes % _EXT4_GROUP_BYTES
    cut = tail if tail < _EXT4_TAIL_BYTES and disk_bytes > _EXT4_GROUP_BYTES else 0
    return (disk_bytes - cut) // BLOCK_BYTES * BLOCK_BYTES


def btrfs_bytes(disk_bytes: int) -> int:
    """What a btrfs is made to span: up to the mark, because mkfs.btrfs clears the last 2 MiB of what it is given."""
    return (disk_bytes - MIB) // BLOCK_BYTES * BLOCK_BYTES


_COMMANDS = {"ext4": _ext4, "xfs": _xfs, "btrfs": _btrfs}
