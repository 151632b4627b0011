# Greets a person by name.
old_name() {
    printf 'hello, %s\n' "$1"
}
