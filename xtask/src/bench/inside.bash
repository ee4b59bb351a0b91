# Runs in the machine, in the workspace: times things there and in a copy on the scratch disk, by turns.
# Prints lines of: what, where, microseconds. The one argument is the number of rounds.
set -euo pipefail
export LC_ALL=C
workspace=$PWD
scratch=/var/tmp/efimera-bench

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

for ((round = 0; round < $1; round++)); do
    places=(workspace scratch)
    ((round % 2 == 0)) || places=(scratch workspace)
    for place in "${places[@]}"; do
        cd "${!place}"
        timed status "$place" git status --short
        timed search "$place" search
        timed build "$place" build
        clean
    done
    for place in "${places[@]}"; do
        cd "${!place}"
        drop_caches
        timed search-cold "$place" search
    done
done
rm -rf "$scratch"
