# Greets everybody, one after the other.
. ./src/greet.sh

crowd() {
    for somebody in "$@"; do
        old_name "$somebody"
    done
}
