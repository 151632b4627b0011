//! The table of attempts to make the user's git start a program, with the command that the user runs afterwards.
//!
//! `@EVIL` is the program, `@CACHE` a folder of the home that commands may write, `@WORK` the Workspace.

/// Separator between commands that run one after the other.
pub const THEN: &str = "\n---\n";

/// One attempt: its name, the commands, and the command that the user runs afterwards.
pub type NestedAttempt = (&'static str, &'static str, &'static str);

pub const SETTINGS: &[NestedAttempt] = &[
    (
        "a monitor by git",
        "git init -q lib; git -C lib config core.fsmonitor @EVIL",
        "git -C lib status",
    ),
    (
        "a monitor by hand",
        "git init -q lib; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> lib/.git/config",
        "git -C lib status",
    ),
    (
        "a monitor beside its heading",
        "git init -q lib; printf '[core] fsmonitor = @EVIL\\n' >> lib/.git/config",
        "git -C lib status",
    ),
    (
        "a monitor behind a comment that seems to go on",
        "git init -q lib; printf '[core]\\n# x \\\\\\n\\tfsmonitor = @EVIL\\n' >> lib/.git/config",
        "git -C lib status",
    ),
    (
        "a monitor behind two megabytes",
        "git init -q lib; head -c 2000000 /dev/zero | tr '\\0' '#' >> lib/.git/config; \
         printf '\\n[core]\\n\\tfsmonitor = @EVIL\\n' >> lib/.git/config",
        "git -C lib status",
    ),
    (
        "an included file",
        "git init -q lib; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > evil.cfg; \
         git -C lib config include.path ../../evil.cfg",
        "git -C lib status",
    ),
    (
        "a file included on a condition",
        "git init -q lib; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > evil.cfg; \
         git -C lib config includeIf.gitdir:/**.path ../../evil.cfg",
        "git -C lib status",
    ),
    (
        "settings of the work tree",
        "git init -q lib; git -C lib config extensions.worktreeConfig true; \
         git -C lib config --worktree core.fsmonitor @EVIL",
        "git -C lib status",
    ),
    (
        "settings by a link",
        "git init -q lib; cp lib/.git/config evil.cfg; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> evil.cfg; ln -sf ../../evil.cfg lib/.git/config",
        "git -C lib status",
    ),
    (
        "settings of a common folder",
        "git init -q lib; cp -r lib/.git common; rm -r lib/.git/objects lib/.git/refs; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> common/config; echo ../../common > lib/.git/commondir",
        "git -C lib status",
    ),
    (
        "a filter",
        "git init -q lib; cd lib; git config filter.e.clean @EVIL; echo '* filter=e' > .gitattributes; \
         echo a > f; git add f",
        "cd lib; echo b > f; git status; git diff",
    ),
    (
        "a filter for checkouts",
        "git init -q lib; cd lib; git config filter.e.smudge @EVIL; echo '* filter=e' > .gitattributes; \
         echo a > f; git add f",
        "cd lib; rm f; git checkout f",
    ),
    (
        "an external diff",
        "git init -q lib; cd lib; echo a > f; git add f; git config diff.external @EVIL; echo b > f",
        "cd lib; git diff",
    ),
    (
        "a converter for diffs",
        "git init -q lib; cd lib; echo a > f; git add f; git config diff.e.textconv @EVIL; \
         echo '* diff=e' > .gitattributes; echo b > f",
        "cd lib; git diff",
    ),
    (
        "a driver for merges",
        "git init -q lib; cd lib; echo a > f; echo '* merge=e' > .gitattributes; git add .; \
         git commit -qm a; git branch b; echo b > f; git commit -qam b; git checkout -q b; \
         echo c > f; git commit -qam c; git config merge.e.driver '@EVIL %A'",
        "cd lib; git merge -m x master",
    ),
    ("an alias", "git init -q lib; git -C lib config alias.st '!@EVIL'", "git -C lib st"),
    (
        "a pager",
        "git init -q lib; git -C lib commit -q --allow-empty -m a; git -C lib config core.pager @EVIL",
        "TERM=xterm script -qec 'git -C lib log' /dev/null || git -C lib -p log",
    ),
    (
        "an editor",
        "git init -q lib; git -C lib config core.editor @EVIL",
        "unset GIT_EDITOR EDITOR VISUAL; git -C lib commit --allow-empty",
    ),
    (
        "an editor of lists",
        "git init -q lib; cd lib; git commit -q --allow-empty -m a; git commit -q --allow-empty -m b; \
         git config sequence.editor @EVIL",
        "cd lib; git rebase -i HEAD~1",
    ),
    (
        "another ssh",
        "git init -q lib; cd lib; git config core.sshCommand @EVIL; git remote add o ssh://h.invalid/x",
        "git -C lib fetch o",
    ),
    (
        "a transport that is a program",
        "git init -q lib; cd lib; git config protocol.ext.allow always; git remote add o 'ext::@EVIL'",
        "git -C lib fetch o",
    ),
    (
        "another upload-pack",
        "git init -q lib; cd lib; git remote add o ../vendor; git config remote.o.uploadpack @EVIL",
        "git -C lib fetch o",
    ),
    (
        "another program for signatures",
        "git init -q lib; cd lib; git config gpg.program @EVIL; git config commit.gpgsign true",
        "git -C lib commit --allow-empty -m x",
    ),
];

pub const HOOKS: &[NestedAttempt] = &[
    (
        "a hook",
        "git init -q lib; mkdir -p lib/.git/hooks; cp @EVIL lib/.git/hooks/pre-commit",
        "git -C lib commit --allow-empty -m x",
    ),
    (
        "a hook that status runs",
        "git init -q lib; cd lib; echo a > f; git add f; git commit -qm a; mkdir -p .git/hooks; \
         cp @EVIL .git/hooks/post-index-change",
        "cd lib; touch -d 2001-01-01 f; git status",
    ),
    (
        "a hook by link",
        "git init -q lib; mkdir -p lib/.git/hooks; ln -s @EVIL lib/.git/hooks/pre-commit",
        "git -C lib commit --allow-empty -m x",
    ),
    (
        "a folder of hooks by link",
        "git init -q lib; mkdir h; cp @EVIL h/pre-commit; rm -rf lib/.git/hooks; ln -s ../../h lib/.git/hooks",
        "git -C lib commit --allow-empty -m x",
    ),
    (
        "another folder of hooks",
        "git init -q lib; mkdir h; cp @EVIL h/pre-commit; git -C lib config core.hooksPath ../h",
        "git -C lib commit --allow-empty -m x",
    ),
    (
        "a template",
        "mkdir -p tp/hooks; cp @EVIL tp/hooks/pre-commit; git init -q --template=tp lib",
        "git -C lib commit --allow-empty -m x",
    ),
    (
        "a hook of a vendored repository",
        "mkdir -p vendor/.git/hooks; cp @EVIL vendor/.git/hooks/pre-commit",
        "git -C vendor commit --allow-empty -m x",
    ),
    (
        "a hook that was there",
        "cp @EVIL vendor/.git/hooks/commit-msg",
        "git -C vendor commit --allow-empty -m x",
    ),
    (
        "a hook in a closed folder",
        "git init -q lib; mkdir -p lib/.git/hooks; cp @EVIL lib/.git/hooks/pre-commit; chmod 311 lib lib/.git/hooks",
        "git -C lib commit --allow-empty -m x",
    ),
];

pub const PLACES: &[NestedAttempt] = &[
    (
        "a folder in place of a submodule",
        "rm -rf sub; git init -q sub; git -C sub config core.fsmonitor @EVIL",
        "git status",
    ),
    (
        "settings of a submodule",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> .git/modules/sub/config",
        "git status",
    ),
    (
        "another module for a submodule",
        "cp -r .git/modules/sub .git/modules/evil; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> .git/modules/evil/config; \
         echo 'gitdir: ../.git/modules/evil' > sub/.git",
        "git status",
    ),
    (
        "a module among the objects",
        "cp -r .git/modules/sub .git/objects/evil; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> .git/objects/evil/config; \
         echo 'gitdir: ../.git/objects/evil' > sub/.git",
        "git status",
    ),
    (
        "a pointer into the work tree",
        "cp -r .git/modules/sub eg; printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = ../sub\\n' >> eg/config; \
         echo 'gitdir: ../eg' > sub/.git",
        "git status",
    ),
    (
        "a pointer into the cache",
        "mkdir -p @CACHE; cp -r .git/modules/sub @CACHE/evil; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = @WORK/sub\\n' >> @CACHE/evil/config; \
         echo 'gitdir: @CACHE/evil' > sub/.git",
        "git status",
    ),
    (
        "a long pointer into the cache",
        "mkdir -p @CACHE; cp -r .git/modules/sub @CACHE/evil; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = @WORK/sub\\n' >> @CACHE/evil/config; \
         echo 'gitdir: @CACHE/evil' > sub/.git; head -c 100000 /dev/zero | tr '\\0' '\\n' >> sub/.git",
        "git status",
    ),
    (
        "a pointer into the cache with an odd name",
        "mkdir -p @CACHE; e=@CACHE/$(printf 'e\\377'); cp -r .git/modules/sub \"$e\"; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = @WORK/sub\\n' >> \"$e/config\"; \
         echo \"gitdir: $e\" > sub/.git",
        "git status",
    ),
    (
        "a link into the work tree",
        "cp -r .git/modules/sub eg; printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = ../sub\\n' >> eg/config; \
         rm sub/.git; ln -s ../eg sub/.git",
        "git status",
    ),
    (
        "settings of a vendored repository",
        "git -C vendor config core.fsmonitor @EVIL",
        "git status",
    ),
    (
        "settings of a vendored repository by rename",
        "cp vendor/.git/config c; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> c; mv c vendor/.git/config",
        "git status",
    ),
    (
        "another repository in place of a vendored one",
        "mv vendor v; cp -r v vendor; git -C vendor config core.fsmonitor @EVIL",
        "git status",
    ),
    (
        "a vendored repository made again",
        "rm -rf vendor; git init -q vendor; git -C vendor config core.fsmonitor @EVIL; \
         git -C vendor commit -q --allow-empty -m x",
        "git status",
    ),
    (
        "a vendored repository that moved",
        "mv vendor v2; git -C v2 config core.fsmonitor @EVIL",
        "git -C v2 status",
    ),
    (
        "a new gitlink",
        "git init -q n; git -C n commit -q --allow-empty -m a; git add n; git -C n config core.fsmonitor @EVIL",
        "git status",
    ),
    (
        "a new gitlink, deep",
        "mkdir -p a/b/c; git init -q a/b/c/n; git -C a/b/c/n commit -q --allow-empty -m a; git add a; \
         git -C a/b/c/n config core.fsmonitor @EVIL",
        "git status",
    ),
    (
        "a gitlink in a closed folder",
        "git init -q n; git -C n commit -q --allow-empty -m a; git add n; \
         git -C n config core.fsmonitor @EVIL; chmod 311 n",
        "git status",
    ),
    (
        "a repository in an ignored folder",
        "echo node_modules >> .gitignore; git init -q node_modules/m/x; \
         git -C node_modules/m/x config core.fsmonitor @EVIL",
        "cd node_modules/m/x; git status",
    ),
    (
        "a repository in a vendored one",
        "git init -q vendor/in; git -C vendor/in config core.fsmonitor @EVIL",
        "git -C vendor/in status",
    ),
    (
        "a repository from an archive",
        "git init -q t/lib; git -C t/lib config core.fsmonitor @EVIL; tar cf a.tar -C t lib; rm -r t; tar xf a.tar",
        "git -C lib status",
    ),
    (
        "a repository in two steps",
        "git init -q lib; mv lib/.git lib/g; mv lib/g/HEAD lib/g/H; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> lib/g/config\n---\nmv lib/g/H lib/g/HEAD; mv lib/g lib/.git",
        "git -C lib status",
    ),
    (
        "a pointer in two steps",
        "git init -q --separate-git-dir=gd lib\n---\nprintf '[core]\\n\\tfsmonitor = @EVIL\\n' >> gd/config",
        "git -C lib status",
    ),
    (
        "a separate folder in the repository",
        "git init -q --separate-git-dir=.git/evil lib; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> .git/evil/config",
        "git -C lib status",
    ),
    (
        "a bare repository",
        "git init -q --bare b; printf '[core]\\n\\tbare = false\\n\\tworktree = .\\n\\tfsmonitor = @EVIL\\n' >> b/config",
        "cd b; git status",
    ),
    (
        "a bare repository by hand",
        "mkdir -p lib/objects lib/refs; echo 'ref: refs/heads/x' > lib/HEAD; \
         printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = .\\n\\tfsmonitor = @EVIL\\n' > lib/config",
        "cd lib; git status",
    ),
    (
        "a bare repository with the objects of another",
        "mkdir -p lib c/objects c/refs; echo 'ref: refs/heads/x' > lib/HEAD; echo ../c > lib/commondir; \
         printf '[core]\\n\\trepositoryformatversion = 0\\n\\tworktree = ../lib\\n\\tfsmonitor = @EVIL\\n' > c/config; \
         echo 'ref: refs/heads/x' > c/HEAD",
        "cd lib; git status; cd ../c; git status",
    ),
    (
        "a new module",
        "cp -r .git/modules/sub .git/modules/new; mkdir new; echo 'gitdir: ../.git/modules/new' > new/.git; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = ../../../new\\n' >> .git/modules/new/config; git add new",
        "git status",
    ),
    (
        "a module with a slash in its name",
        "mkdir -p .git/modules/a; cp -r .git/modules/sub .git/modules/a/b; mkdir new; \
         echo 'gitdir: ../.git/modules/a/b' > new/.git; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = ../../../../new\\n' >> .git/modules/a/b/config",
        "git -C new status",
    ),
    (
        "a module in a closed folder",
        "mkdir -p .git/modules/a; cp -r .git/modules/sub .git/modules/a/b; mkdir new; \
         echo 'gitdir: ../.git/modules/a/b' > new/.git; \
         printf '[core]\\n\\tfsmonitor = @EVIL\\n\\tworktree = ../../../../new\\n' >> .git/modules/a/b/config; \
         chmod 311 .git/modules/a",
        "git -C new status",
    ),
    (
        "a worktree with another common folder",
        "git worktree add -q wt; cp -r .git common; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> common/config; \
         echo @WORK/common > .git/worktrees/wt/commondir",
        "git -C wt status",
    ),
    (
        "settings of a worktree of a vendored repository",
        "git -C vendor worktree add -q ../vt; git -C vendor config extensions.worktreeConfig true; \
         git -C vt config --worktree core.fsmonitor @EVIL",
        "git -C vt status",
    ),
    (
        "a common folder for a vendored repository",
        "cp -r vendor/.git common; printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> common/config; \
         echo ../../common > vendor/.git/commondir",
        "git -C vendor status",
    ),
];

pub const INCLUDED: &[NestedAttempt] = &[
    (
        "a file of the work tree that settings include",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> .gitconfig",
        "git status",
    ),
    (
        "the same by rename",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' > c; mv -f c .gitconfig",
        "git status",
    ),
    (
        "the same by removal",
        "rm -f .gitconfig; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > .gitconfig",
        "git status",
    ),
    (
        "an included file in a folder that is moved",
        "mv conf c2; mkdir conf; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > conf/git",
        "git status",
    ),
    (
        "a file that an included one includes",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> conf/more",
        "git status",
    ),
    (
        "an included file that is not there",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' > .gitconfig.local",
        "git status",
    ),
    (
        "a file that a vendored repository includes",
        "printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> vendor/shared.cfg",
        "git -C vendor status",
    ),
];

/// Attempts with settings behind links. A command that begins with `user: ` is run by the user, outside the sandbox.
pub const LINKED: &[NestedAttempt] = &[
    (
        "settings that are a link",
        "user: mv .git/config dot.cfg; ln -s ../dot.cfg .git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> dot.cfg",
        "git status",
    ),
    (
        "the target of linked settings by rename",
        "user: mv .git/config dot.cfg; ln -s ../dot.cfg .git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > c; mv -f c dot.cfg",
        "git status",
    ),
    (
        "linked settings behind a linked folder",
        "user: mkdir real; mv .git/config real/cfg; ln -s real way; ln -s ../way/cfg .git/config\n---\n\
         mkdir e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > e/cfg; rm way; ln -s e way",
        "git status",
    ),
    (
        "linked settings in a folder that is moved",
        "user: mkdir -p a/b; mv .git/config a/b/cfg; ln -s ../a/b/cfg .git/config\n---\n\
         mv a a2; mkdir -p a/b; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > a/b/cfg",
        "git status",
    ),
    (
        "settings of a worktree that are a link to nothing",
        "user: git config extensions.worktreeConfig true; ln -s ../wt.cfg .git/config.worktree\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > wt.cfg",
        "git status",
    ),
    (
        "settings that are a link to a writable root",
        "user: mv .git/config @CACHE/w.cfg; ln -s @CACHE/w.cfg .git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> @CACHE/w.cfg",
        "git status",
    ),
    (
        "settings of a module that are a link",
        "user: mv .git/modules/sub/config s.cfg; ln -s ../../../s.cfg .git/modules/sub/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> s.cfg",
        "git -C sub status",
    ),
    (
        "settings of a vendored repository that are a link",
        "user: mv vendor/.git/config vendor/dot.cfg; ln -s ../dot.cfg vendor/.git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> vendor/dot.cfg",
        "git -C vendor status",
    ),
    (
        "the second of two links to settings of a vendored repository",
        "user: mv vendor/.git/config vendor/one; ln -s one vendor/two; ln -s ../two vendor/.git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > vendor/e; rm vendor/two; ln -s e vendor/two",
        "git -C vendor status",
    ),
    (
        "settings of a vendored repository that are a link to a writable root",
        "user: mv vendor/.git/config @CACHE/v.cfg; ln -s @CACHE/v.cfg vendor/.git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> @CACHE/v.cfg",
        "git -C vendor status",
    ),
    (
        "what an included link includes, beside the link",
        "user: mkdir real; mv conf/git real/git; ln -s ../real/git conf/git\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> conf/more",
        "git status",
    ),
    (
        "an included file behind a linked folder",
        "user: mv conf real; ln -s real conf\n---\n\
         rm conf; mkdir conf; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > conf/git",
        "git status",
    ),
    (
        "an included file in a folder that becomes a link",
        "user: git config --add include.path ../later/cfg\n---\n\
         mkdir e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > e/cfg; ln -s e later",
        "git status",
    ),
    (
        "a linked file that a vendored repository includes",
        "user: mv vendor/shared.cfg vendor/real.cfg; ln -s real.cfg vendor/shared.cfg\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> vendor/real.cfg",
        "git -C vendor status",
    ),
    (
        "a link to nothing that a vendored repository includes",
        "user: ln -sfn gone.cfg vendor/shared.cfg\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > vendor/gone.cfg",
        "git -C vendor status",
    ),
    (
        "a file that a vendored repository includes by the home folder",
        "user: git -C vendor config include.path \"~/../${PWD##*/}/vendor/tilde.cfg\"\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' > vendor/tilde.cfg",
        "git -C vendor status",
    ),
    (
        "an included file of a vendored repository in a folder that becomes a link",
        "user: git -C vendor config --add include.path ../inc/x; mkdir vendor/inc; \
         printf '[user]\\n' > vendor/inc/x\n---\n\
         mkdir vendor/e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > vendor/e/x; \
         mv vendor/inc vendor/old; ln -s e vendor/inc",
        "git -C vendor status",
    ),
    (
        "an included file of a vendored repository in a folder that was not there",
        "user: git -C vendor config --add include.path ../later/cfg\n---\n\
         mkdir vendor/e; printf '[core]\\n\\tfsmonitor = @EVIL\\n' > vendor/e/cfg; ln -s e vendor/later",
        "git -C vendor status",
    ),
    (
        "settings that a command linked, in a second command",
        "git init -q lib; mv lib/.git/config lib/c; ln -s ../c lib/.git/config\n---\n\
         printf '[core]\\n\\tfsmonitor = @EVIL\\n' >> lib/c",
        "git -C lib status",
    ),
];
