# Runs in the machine, in the workspace: times things there and in a copy on the scratch disk, by turns.
# Prints lines of: what, where, microseconds. The one argument is the number of rounds.
set -euo pipefail
export LC_ALL=C
workspace=$PWD
scratch=/var/tmp/copy
rounds=$1

timed() {
    local what=$1 where=$2 begun ended
    shift 2
    begun=$EPOCHREALTIME
    "$@" >/dev/null
    ended=$EPOCHREALTIME
    echo "$what $where $((${ended/./} - ${begun/./}))"
}

drop_caches() {
    sync
    sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'
}

# A word that every file has somewhere, so that all of them are read.
search() { rg --count-matches bace .; }
build() { make --silent -C c program; }
clean() { make --silent -C c clean; }

timed status-first workspace git status --short
timed status-second workspace git status --short

cp -a "$workspace" "$scratch"
# Once untimed everywhere: the copy's index is refreshed, programs and files are in the page cache.
for where in "$workspace" "$scratch"; do
    cd "$where"
    git status --short >/dev/null
    search >/dev/null
    build
    clean
done

# Calls a function for each place, and changes about who is first.
by_turns() {
    local round place
    for ((round = 0; round < rounds; round++)); do
        places=(workspace scratch)
        ((round % 2 == 0)) || places=(scratch workspace)
        for place in "${places[@]}"; do
            cd "${!place}"
            "$1" "$place"
        done
    done
}

warm() {
    timed status "$1" git status --short
    timed search "$1" search
    timed build "$1" build
    clean
}

cold() {
    drop_caches
    timed search-cold "$1" search
}

by_turns warm
by_turns cold
cd /
rm -rf "$scratch"
