#!/usr/bin/env bash
# What README tells a newcomer to type, each command with its time; prints a transcript. Run it in a fresh checkout on a
# fresh system with Python, a C++ compiler, make and curl, such as this one:
#
#     debootstrap --variant=minbase trixie ROOT
#     chroot ROOT apt-get install -y --no-install-recommends ca-certificates curl g++ git make python3-venv
#     chroot ROOT git clone ADDRESS trigraph
#     chroot ROOT bash -c 'cd trigraph && tools/first_hour.sh' 2>&1 | tee transcript.txt
set -uo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
TINY=models/tiny/tiny-q8_0.gguf
failed=0
exec 2>&1

step() {
  local status=0
  echo "\$ $1"
  TIMEFORMAT='[%1R s; processor time %1U s]'
  time {
    bash -c "$1" </dev/null 2>&1 | tail -n "${2:-12}" | sed -E 's/^(.{180}).*/\1/'
    status=${PIPESTATUS[0]}
  }
  [ "$status" = 0 ] || { echo "status $status"; failed=1; }
  echo
}

echo "$(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 -V), $(c++ --version | head -n 1), $(nproc) processors"
echo
step "make run CPU=1" 20
step "make run CPU=1" 20
step "trigraph doctor"
step "trigraph inspect $TINY"
step "trigraph run $TINY -p 'In the beginning' -n 32"
step "trigraph models"
step "trigraph serve $TINY --port 8089 & sleep 5; curl -s http://127.0.0.1:8089/v1/chat/completions \
-H 'Content-Type: application/json' -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}], \"max_tokens\": 8}'; echo; kill %1; wait"
step "python examples/generate.py $TINY 'In the beginning'"
step "make wheels"
exit $failed
