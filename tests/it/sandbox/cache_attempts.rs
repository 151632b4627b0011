//! Attempts through package caches: to plant code that the user's programs run later, and to reach the layers.

use super::attempts::EscapeAttempt;

/// Attempts, with placeholders as in `attempts`.
pub const CACHES: &[EscapeAttempt] = &[
    ("a crate's build script", "echo evil > @HOME/.cargo/registry/src/i/dep-1/build.rs"),
    (
        "a new crate",
        "mkdir -p @HOME/.cargo/registry/src/i/new-1 && echo evil > @HOME/.cargo/registry/src/i/new-1/build.rs",
    ),
    ("a crate's archive", "echo evil > @HOME/.cargo/registry/cache/i/dep-1.crate"),
    ("a checkout of cargo", "echo evil > @HOME/.cargo/git/checkouts/r/1/build.rs"),
    ("a pre-commit environment", "echo evil > @HOME/.cache/pre-commit/repo/bin/hook"),
    ("a poetry environment", "echo evil > @HOME/.cache/pypoetry/virtualenvs/v/bin/python"),
    (
        "a wheel of pip",
        "mkdir -p @HOME/.cache/pip/wheels && echo evil > @HOME/.cache/pip/wheels/x.whl",
    ),
    ("a program of go-build", "install -m 755 /bin/true @HOME/.cache/go-build/program"),
    ("npm's content", "echo evil > @HOME/.npm/_cacache/content-v2/ab"),
    (
        "npm's index",
        "mkdir -p @HOME/.npm/_cacache/index-v5 && echo evil > @HOME/.npm/_cacache/index-v5/x",
    ),
    ("remove a cached file", "rm -rf @HOME/.cache/pre-commit @HOME/.cargo/registry/src"),
    ("rename a cached folder", "mv @HOME/.cache/pre-commit @HOME/.cache/elsewhere"),
    (
        "replace a cached folder",
        "rm -rf @HOME/.cache/pre-commit && ln -s @OUT @HOME/.cache/pre-commit && echo x > @HOME/.cache/pre-commit/v.txt",
    ),
    (
        "a hard link out of a cache",
        "ln @HOME/.cache/pre-commit/repo/bin/hook hooked && echo evil > hooked",
    ),
    ("a hard link into a cache", "ln @HOME/.bashrc @HOME/.cache/rc && echo evil > @HOME/.cache/rc"),
    (
        "a hard link between caches",
        "ln @HOME/.cache/pre-commit/repo/bin/hook @HOME/.cargo/registry/hook && echo evil > @HOME/.cargo/registry/hook",
    ),
    (
        "exchange with another cache",
        "mv --exchange @HOME/.cache/pre-commit @HOME/.cargo/registry/src",
    ),
    (
        "write through a mapped file",
        "py:import mmap,os\nf=os.open('@HOME/.cache/pre-commit/repo/bin/hook',os.O_RDWR)\nm=mmap.mmap(f,4)\nm[:4]=b'evil'\nm.flush()",
    ),
    (
        "a whiteout of its own",
        "mknod @HOME/.cache/pre-commit/repo/bin/white c 0 0 || unlink @HOME/.cache/pre-commit/repo/bin/hook",
    ),
    (
        "redirect by attribute",
        "py:import os\nos.mkdir('@HOME/.cache/d')\nos.setxattr('@HOME/.cache/d','user.overlay.redirect',b'/outside')\nos.setxattr('@HOME/.cache/d','trusted.overlay.redirect',b'/outside')",
    ),
    (
        "content by attribute",
        "py:import os\nopen('@HOME/.cache/m','w').close()\nos.setxattr('@HOME/.cache/m','user.overlay.metacopy',b'')\nos.setxattr('@HOME/.cache/m','user.overlay.redirect',b'/../.ssh/id')\nprint(open('@HOME/.cache/m').read())",
    ),
    (
        "opaque by attribute",
        "py:import os\nos.setxattr('@HOME/.cache','user.overlay.opaque',b'y')\nos.setxattr('@HOME/.cache/pre-commit','user.overlay.whiteout',b'y')",
    ),
    (
        "attribute of a cached file",
        "py:import os\nos.setxattr('@HOME/.cache/pre-commit/repo/bin/hook','user.x',b'1')",
    ),
    ("the layers by their names", "cat @HOME/.pixir/caches/*/*/upper/* && echo LEAK-@ID"),
    (
        "the layers through the mounts",
        "for f in $(sed -n 's/.*upperdir=\\([^,]*\\).*/\\1/p' /proc/self/mountinfo /proc/1/mountinfo); do ls $f/ && echo LEAK-@ID; done",
    ),
    (
        "the layers through descriptors",
        "for p in /proc/[0-9]*; do for f in $p/fd/*; do case $(readlink $f) in *caches*) echo LEAK-@ID;; esac; done; done",
    ),
    (
        "the layers by searching",
        "find / -xdev -path '*caches*' -name upper 2>/dev/null | while read -r d; do echo x > \"$d/x\" && echo LEAK-@ID; done",
    ),
    (
        "the layers from inside",
        "for d in @HOME/.cache/../.pixir/caches/* @HOME/.cache/../.pixir/caches/*/*; do echo x > $d/x && echo LEAK-@ID; done",
    ),
    (
        "unmount a layer",
        "umount @HOME/.cache || umount -l @HOME/.cache; echo evil > @HOME/.cache/pre-commit/repo/bin/hook",
    ),
    (
        "mount over a layer",
        "unshare -rm sh -c 'umount @HOME/.cache; echo evil > @HOME/.cache/pre-commit/repo/bin/hook'",
    ),
];
