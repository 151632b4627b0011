# Everybody is greeted.
. ./src/crowd.sh
[ "$(crowd Ada Grace | wc -l)" -eq 2 ]
