//! Tests of the files to which a lasting approval is bound, and of commands that get none.

use super::*;

fn found(command: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("tools/pkg")).unwrap();
    std::fs::create_dir_all(folder.path().join("sub")).unwrap();
    for name in [
        "run.sh",
        "a.py",
        "data",
        "Makefile",
        "package.json",
        "tools/x.js",
        "tools/pkg/__main__.py",
        "sub/run.sh",
        "sub/Makefile",
        "main.go",
    ] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("/usr", folder.path().join("away")).unwrap();
    let workspace = Workspace::open(folder.path()).unwrap();
    let command = command.replace("ROOT", &workspace.root().to_string_lossy());
    let ScriptFiles::Known(scripts) = find_script_files(&command, &workspace) else {
        return vec!["unknown".to_owned()];
    };
    scripts.into_keys().map(|path| path.to_string_lossy().into_owned()).collect()
}

#[test]
fn the_files_that_a_command_runs_are_found() {
    let mut wrong = Vec::new();
    for (command, expected) in [
        ("sh run.sh", &["run.sh"][..]),
        ("./run.sh data", &["run.sh"]),
        ("/bin/sh -eu run.sh", &["run.sh"]),
        ("python3.12 a.py data", &["a.py"]),
        ("python3 <a.py", &["a.py"]),
        ("env CI=1 timeout 5 python3 -u a.py", &["a.py"]),
        ("CI=1 sh run.sh", &["run.sh"]),
        ("bash -c 'python3 a.py'", &["a.py"]),
        ("bash -c \"cd tools; node x.js\"", &["tools/x.js"]),
        ("cd tools && node x.js", &["tools/x.js"]),
        ("cd ROOT/tools && node x.js 2>&1 | tail -5", &["tools/x.js"]),
        ("node tools/x.js > data", &["tools/x.js"]),
        ("python3 -m tools.pkg", &["tools/pkg/__main__.py"]),
        ("python3 -mtools.pkg", &["tools/pkg/__main__.py"]),
        ("python3 -m pytest -q data", &[]),
        ("python3 tools/pkg", &["tools/pkg/__main__.py"]),
        (". ./run.sh", &["run.sh"]),
        ("make test", &["Makefile"]),
        ("make -j4 -f data test", &["Makefile", "data"]),
        ("make -C sub test", &["sub/Makefile"]),
        ("mkdir -p out && make", &["Makefile"]),
        ("chmod +x run.sh && ./run.sh", &["run.sh"]),
        ("npm run build", &["package.json"]),
        ("uv run a.py", &["a.py"]),
        ("uv run pytest -q", &[]),
        ("go run main.go x", &["main.go"]),
        ("cd . && cd sub && sh run.sh", &["sub/run.sh"]),
        ("sh run.sh; sh sub/run.sh", &["run.sh", "sub/run.sh"]),
        ("sed -i s/a/b/ data", &[]),
        ("sed -n '1,5p' data", &[]),
        ("sed -E -e 's|a/b|c|g;/x/d' -e '$!N' data", &[]),
        ("awk -F: '{print $1}' data", &[]),
        ("cp data copy", &[]),
        ("cat run.sh", &[]),
        ("cat *.py | wc -l > out", &[]),
        ("git log data", &[]),
        ("cargo build && cargo test", &[]),
        ("pytest -q data", &[]),
        ("printf '%s' a", &[]),
        ("ls | tee out", &[]),
        ("set -e; test -f data && rm data", &[]),
        ("sh -s data", &[]),
        ("sh -s < run.sh", &["run.sh"]),
        ("", &[]),
    ] {
        let found = found(command);
        if found != expected {
            wrong.push(format!("{command}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_not_understood_gets_no_lasting_grant() {
    let mut wrong = Vec::new();
    for command in [
        // Builtins and syntax of the shell.
        "builtin source ./run.sh",
        "builtin eval \"$(cat run.sh)\"",
        "command sh run.sh",
        "exec sh run.sh",
        "hash -p ./run.sh ls; ls",
        "jobs -x sh run.sh",
        "printf -v PATH %s ./bin:/usr/bin:/bin; ls",
        "read PATH < data; ls",
        "test -v 'a[$(sh run.sh)]'",
        "eval 'sh run.sh'",
        "alias ls='sh run.sh'; ls",
        "trap 'sh run.sh' EXIT",
        ". run.sh",
        ". ./run.sh && sh run.sh",
        "sh run.sh &",
        "(sh run.sh)",
        "f() { sh run.sh; }; f",
        "for f in *.sh; do sh \"$f\"; done",
        "bash <<'EOF'\nsh run.sh\nEOF",
        "bash <<< 'sh run.sh'",
        "ls $(sh run.sh)",
        // Programs that run commands from their options or program texts.
        "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec='sh run.sh' data",
        "tar -I ./run.sh -cf x.tar data",
        "sed '1e sh run.sh' data",
        "sed 's/a/sh run.sh/e' data",
        "sed 's/a/b/;s/c/d/w run.sh' data",
        "sed -n '/a/w run.sh' data",
        "sed -f data data",
        "sed -fdata data",
        "sed --file=data data",
        "sed '$!e' data",
        "sed '{e\n}' data",
        "awk 'BEGIN{system(\"sh run.sh\")}'",
        "awk '{print | \"sh\"}' data",
        "awk '{print > \"run.sh\"}' data",
        "awk 'BEGIN{\"sh run.sh\" | getline}'",
        "awk '@load \"x\"' data",
        "awk -f data data",
        "awk -fdata data",
        "gawk -i inplace 1 data",
        "perl -Itools -MM a.py",
        "perl -e 1",
        "python3 -c 'print(1)'",
        "python3 - <<'EOF'\nprint(1)\nEOF",
        "python3 -m pdb a.py",
        "python3 -X x a.py",
        "node --require ./tools/x.js tools/x.js",
        "node -e 1",
        "git -c core.pager=./run.sh log",
        "git bisect run sh run.sh",
        "find . -name x -exec sh {} +",
        "xargs sh run.sh",
        "unheard-of --file=run.sh",
        "vim -S a.py",
        "gcc a.c",
        // Commands in other folders.
        "make -Csub",
        "make --directory=sub",
        "make -C away",
        "make SHELL=./run.sh",
        "env --chdir=sub sh run.sh",
        "env -C sub sh run.sh",
        "npm test --workspace=sub",
        "npm test --prefix sub",
        "cd / && sh run.sh",
        "cd .. && sh run.sh",
        "cd away && sh run.sh",
        "cd missing; sh run.sh",
        "cd sub || cd tools && sh run.sh",
        "cd sub | sh run.sh",
        "ls && cd sub && sh run.sh",
        "cd $X && sh run.sh",
        "cd -- sub && sh run.sh",
        // Scripts that an earlier command writes.
        "cp data run.sh && sh run.sh",
        "cat data > run.sh && sh run.sh",
        "cat data | tee run.sh; sh run.sh",
        "git pull && make",
        "sed -i s/a/b/ run.sh && sh run.sh",
        "sh run.sh | cat data > run.sh",
        "sh -c 'cp data run.sh'; sh run.sh",
        "ln -sf data run.sh && sh run.sh",
        // Names that are computed, missing, or outside.
        "sh $X",
        "sh *.sh",
        "sh run.sh *.txt",
        "sh missing",
        "sh run.sh; sh missing",
        "python3 /etc/passwd",
        "python3 ../x",
        "cat a.py | python3",
        "ls | xargs sh",
        "cat data | sh",
        "cat data | sh -s",
        "sh -c 'sh -s' < data",
        "sh -s; ls",
        "cat data | env sh",
        "/tmp/x data",
        "~/x data",
        "/usr/../tmp/x",
        "unheard-of $X",
        "cargo test $X",
        "cat $X",
        "cd tools && node missing.js",
        // Variables.
        "PATH=$PWD:$PATH run.sh",
        "PATH=. run.sh",
        "export PATH=.; run.sh",
        "env PATH=. ls",
        "LD_PRELOAD=./data ls",
        "BASH_ENV=run.sh bash -c true",
        "NODE_OPTIONS='--require ./tools/x.js' npm test",
        "IFS=x ls",
    ] {
        let found = found(command);
        if found != ["unknown"] {
            wrong.push(format!("{command}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
