# Greets everybody, one after the other.
. ./src/greet.sh

crowd() {
    for name in "$@"; do
        old_name "$name"
    done
}
