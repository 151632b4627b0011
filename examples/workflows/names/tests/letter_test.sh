# A letter begins with what old_name says.
. ./src/letter.sh
[ "$(letter Ada 'All is well.' | head -n 1)" = "$(old_name Ada)" ]
