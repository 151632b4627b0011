# old_name says hello.
. ./src/greet.sh
[ "$(old_name Ada)" = "hello, Ada" ]
