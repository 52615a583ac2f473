#!/usr/bin/env bash
# A pagodad for the scripts beside this one.
#   daemon.sh start DATA SOCKET            starts it, prints its process id when it answers
#   daemon.sh stop PID                     ends it
#   daemon.sh restart PID DATA SOCKET      kills it, starts another on the same data
set -euo pipefail

here=$(dirname "$(realpath "$0")")
binary=${PAGODAD:-$(dirname "$(dirname "$here")")/build/release/bin/pagodad}

start() {
  local data=$1 socket=$2
  [[ -x $binary ]] || {
    echo "daemon: $binary is not built: cmake --build --preset release --target pagodad" >&2
    exit 1
  }
  mkdir -p "$data"
  rm -f "$socket"
  setsid "$binary" --listen "unix:$socket" --data-dir "$data" --metrics-listen none \
    --host-capacity "${PAGODA_HOST_CAPACITY:-1GiB}" ${PAGODA_LADDER:+--ladder "$PAGODA_LADDER"} > "$data/log" 2>&1 < /dev/null &
  local pid=$!
  for ((tries = 0; tries < 300; ++tries)); do
    [[ -S $socket ]] && break
    kill -0 "$pid" 2> /dev/null || {
      tail -n 20 "$data/log" >&2
      exit 1
    }
    sleep 0.1
  done
  echo "$pid"
}

case "${1:-}" in
  start) start "$2" "$3" ;;
  stop) kill "$2" 2> /dev/null || true ;;
  restart)
    kill -9 "$2"
    sleep 1
    start "$3" "$4"
    ;;
  *)
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
