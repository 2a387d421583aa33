#!/usr/bin/env bash
# What README tells a newcomer to type, each command with its time; then 30 habits from llama.cpp, Ollama, vLLM and
# transformers, each of which works or is answered with a sentence. Prints a transcript. Run it in a fresh checkout on a
# fresh system with Python, a C++ compiler, make and curl, such as this one:
#
#     debootstrap --variant=minbase trixie ROOT
#     chroot ROOT apt-get install -y --no-install-recommends ca-certificates curl g++ git make python3-venv
#     chroot ROOT git clone ADDRESS trigraph
#     chroot ROOT bash -c 'cd trigraph && tools/first_hour.sh' 2>&1 | tee transcript.txt
#
# tools/first_hour.sh habits tries the habits alone, with whichever trigraph is installed in .venv or on the path.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
TINY=models/tiny/tiny-q8_0.gguf
URL=http://127.0.0.1:8089
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

# A command that has to succeed.
works() {
  local said
  if said=$(timeout 300 bash -c "set -o pipefail; $1" </dev/null 2>&1); then
    echo "works        $1"
  else
    echo "FAILS        $1: $(tail -c 200 <<<"$said")"
    failed=1
  fi
}

# A command that has to end with one line that says what to do instead, and not with a traceback.
told() {
  local said
  if ! said=$(timeout 300 bash -c "$1" </dev/null 2>&1) && [[ $said != *Traceback* ]] && [[ $said == *"$2"* ]]; then
    echo "not offered  $1: ${said#error: }"
  else
    echo "FAILS        $1: $(tail -c 200 <<<"$said")"
    failed=1
  fi
}

post() { echo "curl -sf $URL$1 -H 'Content-Type: application/json' -d '$2'"; }

habits() {
  works "trigraph --version"
  works "python -m trigraph --help"
  works "trigraph run tiny -p 'In the beginning' -n 8"
  works "echo 'In the beginning' | trigraph run tiny -n 8"
  works "trigraph run $TINY -p Once -n 4 --temp 0 --top-k 1 -s 1 -c 1k -t 1"
  works "trigraph run tiny -p Once -n 4 --json | python -m json.tool"
  works "trigraph run tiny -p Name: -n 40 -j '{\"type\": \"object\", \"maxProperties\": 0}'"
  works "trigraph chat tiny -p Once -n 4"
  works "trigraph list"
  works "trigraph show tiny"
  works "trigraph perplexity tiny -f README.md --chunks 1"
  told "trigraph run tiny 'In the beginning'" "give the prompt with -p"
  told "trigraph run -m $TINY" "the model is the first argument"
  told "trigraph run tiny -ngl 99" "--device cuda"
  told "trigraph run tiny -ot exps=CPU" "--experts cpu"
  told "trigraph run tiny --spec-type draft-mtp" "--draft-tokens"
  told "trigraph run qwen3.5:4b" "write ollama:qwen3.5:4b"
  told "trigraph ps" "/v1/models"
  told "trigraph serve tiny --tensor-parallel-size 2" "--device cuda:0,cuda:1"
  told "trigraph serve tiny --max-model-len 4096" "use --ctx-size"
  told "trigraph serve tiny -np 100000" "at most 1024"
  told "trigraph serve tiny --cors-origin notaorigin" "an origin is a scheme and a host"
  local python='import trigraph; print(trigraph.load("tiny").generate("Once"'
  works "python -c '$python, max_tokens=8, temperature=0).run())'"
  told "python -c '$python, max_new_tokens=8).run())' 2>&1 | tail -n 1 | grep . && false" "use max_tokens"

  trigraph serve tiny --port 8089 >/dev/null 2>&1 &
  local server=$!
  for _ in {1..100}; do curl -sf $URL/health >/dev/null && break || sleep 0.2; done
  works "curl -sf $URL/v1/models"
  works "$(post /v1/chat/completions '{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8, "stream": true}')"
  works "$(post /v1/messages '{"model": "x", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8}')"
  works "$(post /v1/embeddings '{"input": "Why?"}')"
  works "$(post /completion '{"prompt": "Once", "n_predict": 8}')"
  works "curl -sf $URL/metrics | grep tokens"
  kill "$server" && wait "$server"
}

if [ "${1:-}" = habits ]; then
  habits
  exit $failed
fi
echo "$(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 -V), $(c++ --version | head -n 1), $(nproc) processors"
echo
step "make run CPU=1" 20
step "make run CPU=1" 20
step "trigraph doctor"
step "trigraph inspect $TINY"
step "trigraph run $TINY -p 'In the beginning' -n 32"
step "trigraph models"
step "trigraph serve $TINY --port 8089 & until curl -sf $URL/health >/dev/null; do sleep 0.2; done; \
curl -s $URL/v1/chat/completions \
-H 'Content-Type: application/json' -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}], \"max_tokens\": 8}'; echo; kill %1; wait"
step "python examples/generate.py $TINY 'In the beginning'"
habits
step "make wheels"
exit $failed
