//! Attempts to read credentials of the home. `sample` lists files below it; what is read goes to `got`.

/// One attempt: its name and its command.
pub type ReadAttempt = (&'static str, &'static str);

pub const READ_ATTEMPTS: &[ReadAttempt] = &[
    ("each by name", "while read -r f; do cat \"$HOME/$f\"; done < sample >> got 2>&1"),
    (
        "by the shell itself",
        "while read -r f; do echo \"$(< \"$HOME/$f\")\"; done < sample >> got 2>&1",
    ),
    (
        "from the home",
        "w=$PWD; cd ~; while read -r f; do cat \"$f\"; done < $w/sample >> $w/got 2>&1",
    ),
    (
        "by another root",
        "while read -r f; do cat \"/proc/self/root$HOME/$f\"; done < sample >> got 2>&1",
    ),
    (
        "by the first process",
        "while read -r f; do cat \"/proc/1/root$HOME/$f\"; done < sample >> got 2>&1",
    ),
    (
        "by the parent",
        "while read -r f; do cat \"/proc/$PPID/root$HOME/$f\"; done < sample >> got 2>&1",
    ),
    (
        "by the roots of all processes",
        "for p in /proc/[0-9]*; do cat $p/root$HOME/.npmrc $p/cwd/.npmrc; done >> got 2>&1",
    ),
    (
        "by a descriptor of the folder",
        "exec 3< ~; while read -r f; do cat \"/proc/self/fd/3/$f\"; done < sample >> got 2>&1",
    ),
    (
        "by a hard link",
        "while read -r f; do ln \"$HOME/$f\" hard && cat hard; rm -f hard; done < sample >> got 2>&1",
    ),
    (
        "by a link in the Workspace",
        "while read -r f; do ln -sfn \"$HOME/$f\" soft; cat soft; done < sample >> got 2>&1",
    ),
    (
        "by a link to the home",
        "ln -sfn ~ h; while read -r f; do cat \"h/$f\"; done < sample >> got 2>&1",
    ),
    (
        "by a link in a cache",
        "ln -sfn ~ ~/.cache/h; while read -r f; do cat \"$HOME/.cache/h/$f\"; done < sample >> got 2>&1",
    ),
    ("around a cache", "while read -r f; do cat \"$HOME/.cache/../$f\"; done < sample >> got 2>&1"),
    (
        "everything that is found",
        "find ~ -path \"$PWD\" -prune -o -type f -print0 | xargs -0 cat >> got 2>&1",
    ),
    ("by a search", "grep -r --exclude-dir=work s3cr3t ~ >> got 2>&1"),
    (
        "by a copy of the home",
        "mkdir c; cp -r ~/.[a-z]* ~/[A-Z_]* c/ 2> /dev/null; find c -type f -exec cat {} + >> got",
    ),
    ("by an archive", "tar cf - -C ~ --exclude work . 2> /dev/null | tr -d '\\0' >> got"),
    (
        "by moving",
        "while read -r f; do mv \"$HOME/$f\" moved && cat moved; done < sample >> got 2>&1",
    ),
    (
        "by git",
        "git diff --no-index /dev/null ~/.npmrc >> got 2>&1; git config -f ~/.netrc -l >> got 2>&1",
    ),
    ("by an include of git", "git -c include.path=$HOME/.npmrc config -l >> got 2>&1"),
    (
        "by an object store of git",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES=$HOME git hash-object -t blob ~/.npmrc >> got 2>&1",
    ),
    ("by curl", "curl -s file://$HOME/.npmrc >> got 2>&1"),
    (
        "by python",
        "python3 -c 'import os\nfor l in open(\"sample\"):\n  try: print(open(os.path.expanduser(\"~/\" + l.strip())).read())\n  except OSError: pass' >> got 2>&1",
    ),
    ("as a script", ". ~/.npmrc >> got 2>&1; bash ~/.netrc >> got 2>&1"),
    (
        "as a list of arguments",
        "xargs -a ~/.npmrc echo >> got 2>&1; sort --files0-from=$HOME/.npmrc >> got 2>&1",
    ),
    ("by unmounting", "umount -l ~; umount ~; cat ~/.npmrc >> got 2>&1"),
    ("by another namespace", "unshare -rm sh -c 'umount -l ~; cat ~/.npmrc' >> got 2>&1"),
    (
        "by another mount",
        "mkdir -p m; mount --bind ~ m; unshare -rm sh -c 'mount --rbind ~ m; cat m/.npmrc' >> got 2>&1",
    ),
    (
        "by taking the place of settings",
        "ln -sfn ~/.npmrc ~/.gitconfig; cp -f ~/.npmrc ~/.cache/n; cat ~/.gitconfig ~/.cache/n >> got 2>&1",
    ),
    ("by a new mode", "chmod -R a+rwX ~; cat ~/.npmrc ~/.ssh/id_ed25519 >> got 2>&1"),
    (
        "by another spelling",
        "cat ~/./.npmrc ~//.npmrc ~/.local/../.npmrc ~/.cargo/../.cargo/credentials.toml >> got 2>&1",
    ),
    ("by the folder above", "cat ~/../home/.npmrc >> got 2>&1"),
    (
        "in a shown folder",
        "cat ~/.cargo/credentials ~/.gem/credentials ~/.config/git/credentials ~/.cache/huggingface/token >> got 2>&1",
    ),
    (
        "by removing what covers",
        "rm -rf ~/.cache/huggingface ~/.cargo/credentials; cat ~/.cache/huggingface/token ~/.cargo/credentials >> got 2>&1",
    ),
    (
        "by moving what surrounds",
        "mv ~/.cache/huggingface ~/.cache/other; cat ~/.cache/other/token >> got 2>&1",
    ),
];
