#!/bin/sh
# `serve` starts the server with config.properties of the working directory, and further options of torchserve.
# It is the main process then: a stop of the container stops it. Anything else is a command. If it has started a
# server in the background, the container lives as long as that server.
set -eu
if [ "${1:-}" = serve ]; then
    shift
    exec torchserve --start --foreground --ts-config "${TS_CONFIG_FILE:-$PWD/config.properties}" \
        --disable-token-auth "$@"
fi
"$@"
pid_file="${TMPDIR:-${TEMP:-/tmp}}/.model_server.pid"
[ -e "$pid_file" ] || exit 0
pid=$(cat "$pid_file")
trap 'torchserve --stop' TERM INT
while kill -0 "$pid" 2> /dev/null; do
    sleep 1 &
    wait $! || true
done
