//! The parts of `--help` that teach: the same text for the terminal and the man pages.

pub(crate) const ROOT: &str = "\
The command tree:
  piton workflows list               which workflows there are
  piton instances list               which instances there are, and what each is doing or waiting for
  piton instances get                one instance: status, what it waits for, times, result
  piton instances history            what happened: steps and events on one timeline, with the gaps
  piton instances logs               its log lines; --follow goes on until it ends
  piton instances watch              a live view until it ends
  piton instances result             what it returned; --wait waits for it
  piton instances create             start one
  piton instances send-event         give it what it waits for
  piton instances pause, resume      stop it for a while, and let it go on
  piton instances restart            run it again from the start, with the same params
  piton instances terminate          end it
  piton hooks list                   which hooks there are: callbacks that run after a commit
  piton hooks get                    one hook: status, attempts, times, the last error
  piton hooks retry                  let a failed one be processed again
  piton completions, piton man       for your shell and for man

A first round, with the demo server (`cargo run --release` in Piton's repository, in another terminal):
  piton workflows list
  piton instances create -w order -i order-1 --params '{\"item\": \"rope\", \"cents\": 4200}'
  piton instances get -w order -i order-1
  piton instances send-event -w order -i order-1 -t approved --payload '{\"by\": \"Ada\"}'
  piton instances result -w order -i order-1 --wait
  piton instances history -w order -i order-1

Find what is stuck, and see why:
  piton instances list --status errored
  piton instances list --status waiting -w order
  piton instances get -w order -i order-1 --full
  piton instances history -w order -i order-1 --include-logs

Unblock it, or run it again:
  piton instances send-event -w order -i order-1 -t approved --payload @approval.json
  piton instances resume -w order -i order-1
  piton instances restart -w order -i order-1

Which server:
  Each of these wins over the ones below it.
  --base-url URL, -H \"Name: value\", --timeout, --retries
  PITON_BASE_URL, PITON_HEADERS (one header per line), PITON_TIMEOUT, PITON_RETRIES
  the profile named by --profile or PITON_PROFILE, else by `profile` in the config file
  http://127.0.0.1:7420/api/workflows, where the demo server listens

The config file:
  ~/.config/piton/config.toml on Linux, ~/Library/Application Support/piton/config.toml on macOS,
  %APPDATA%\\piton\\config.toml on Windows; --config or PITON_CONFIG names another. Keep it to yourself (chmod 600).

  profile = \"staging\"

  [profiles.staging]
  base-url = \"https://staging.example/api/workflows\"
  headers = [\"Authorization: Bearer TOKEN\"]

  [profiles.production]
  base-url = \"https://piton.example/api/workflows\"
  headers = [\"Authorization: Bearer TOKEN\"]
  timeout = \"10 seconds\"
  retries = 5

  The headers of a profile are sent to its own base-url only.

Other variables:
  NO_COLOR                           no colours; there are none either unless stdout is a terminal

Exit codes:
  0  done        1  the server refused        2  wrong usage        3  cannot reach the server

What you asked for goes to stdout, everything else to stderr. The text is for people and may change:
programs should call the HTTP API.";

pub(crate) const WORKFLOWS: &str = "\
Examples:
  piton workflows list               prints one name per line";

pub(crate) const INSTANCES: &str = "\
An instance is addressed by its workflow (-w) and its id (-i).

Statuses:
  active       a runner is advancing it, or will in a moment
  waiting      for an event, a time or the retry of a step: `get` says which
  paused       until `resume`
  complete     it returned a result
  errored      it failed; `history` says where, `restart` runs it again
  terminated   somebody ended it

Examples:
  piton instances list --status errored
  piton instances get -w order -i order-1
  piton instances watch -w order -i order-1";

pub(crate) const LIST: &str = "\
Prints a table: id, status, when it was created, and what it is doing, waiting for or came to; newest first.
Without --workflow, of all workflows. Each row costs one more request; --brief does without.

Examples:
  piton instances list -w order                        the newest 25
  piton instances list --status errored                what failed, in any workflow
  piton instances list -w order --status waiting --all
  piton instances list -w order --since 2h
  piton instances list -w order --all --brief | wc -l";

pub(crate) const GET: &str = "\
Prints the status, what it is doing or waiting for in a sentence, and its times.
--full adds params, output and all that is known about the current step, whole.

Examples:
  piton instances get -w order -i order-1
  piton instances get -w order -i order-1 --full";

pub(crate) const HISTORY: &str = "\
Prints one timeline, oldest first: steps when they started, events when they arrived and, with --include-logs,
log lines; a line between two of them tells how long nothing was recorded, and why, where that is known.
A step has its duration, attempts (2/6: the second of at most six) and result. Times are in UTC.

Examples:
  piton instances history -w order -i order-1
  piton instances history -w order -i order-1 --include-logs
  piton instances history -w order -i order-1 --run 0        an earlier run, after a restart
  piton instances history -w order -i order-1 --all --full   everything, and nothing cut short";

pub(crate) const LOGS: &str = "\
Prints time (UTC), level, category, message, data and step of each line, oldest first.
The engine's own lines have the category `system`. Lines marked `replay` were written again by code that ran again.

--follow shows each line once, goes on after a restart of the server or of the instance, and ends with the instance.

Examples:
  piton instances logs -w order -i order-1
  piton instances logs -w order -i order-1 --follow
  piton instances logs -w order -i order-1 --log-level error
  piton instances logs -w order -i order-1 --log-category system";

pub(crate) const WATCH: &str = "\
Shows status, what it is doing or waiting for with a countdown, and the last log lines, until it ends or you press
Ctrl-C, which does nothing to the instance. If stdout is not a terminal, prints a line for each change instead.

Examples:
  piton instances watch -w order -i order-1";

pub(crate) const RESULT: &str = "\
Prints what it returned, as JSON. Ends with 0 only if it is complete; with 1 if it failed, was terminated, or has not
ended (in time). --wait goes on after a restart of the server.

Examples:
  piton instances result -w order -i order-1
  piton instances result -w order -i order-1 --wait          for as long as it takes
  piton instances result -w order -i order-1 --wait 10m";

pub(crate) const CREATE: &str = "\
Prints the id, and nothing else to stdout. An id of your own makes it easy to find, and impossible to create twice; without
one the server makes one up.

Examples:
  piton instances create -w order -i order-1 --params '{\"item\": \"rope\", \"cents\": 4200}'
  piton instances create -w order --params @order.json
  jq .order mail.json | piton instances create -w order --params -
  id=$(piton instances create -w order --params @order.json)";

pub(crate) const PAUSE: &str = "\
Stops at once if the instance waits, else when its running steps have ended; their results are kept. Timers go on
counting, and events are kept.

Examples:
  piton instances pause -w order -i order-1";

pub(crate) const RESUME: &str = "\
Whatever fell due meanwhile is due at once. Does nothing to an instance that is not paused.

Examples:
  piton instances resume -w order -i order-1";

pub(crate) const RESTART: &str = "\
Starts the next run from the start with the same params, whatever the status: every step is executed again. Earlier runs
stay readable: history --run 0.

Examples:
  piton instances restart -w order -i order-1";

pub(crate) const TERMINATE: &str = "\
Ends it for good: nothing of this run is recorded afterwards. Only `restart` brings it back, as a new run.

Examples:
  piton instances terminate -w order -i order-1";

pub(crate) const SEND_EVENT: &str = "\
The event is kept until the instance waits for its type; `get` says what it waits for. A retry of the same call stores it
once; --idempotency-key makes that so for calls of your own that may be repeated.

Examples:
  piton instances send-event -w order -i order-1 -t approved --payload '{\"by\": \"Ada\"}'
  piton instances send-event -w order -i order-1 -t approved --payload @approval.json
  piton instances send-event -w order -i order-1 -t cancelled";

pub(crate) const HOOKS: &str = "\
A hook is a callback that was stored with a transaction and runs after it. It is addressed by its id.

Statuses:
  pending      waits for its time, or to be tried again
  processing   somebody has it in hand
  completed    its handler has returned
  failed       its attempts are used up; `get` says why, `retry` starts anew

Examples:
  piton hooks list --status failed
  piton hooks get -i hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8
  piton hooks retry -i hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8";

pub(crate) const HOOKS_LIST: &str = "\
Prints a table: id, name, status, tries (2/6: the second of at most six), when it was created, and what it waits for or came
to; newest first. Tries that a crash or a shutdown cut off are counted, but not against the limit: 6/1 is possible.

Examples:
  piton hooks list                                     the newest 25
  piton hooks list --status failed --all
  piton hooks list --name user.created --status pending";

pub(crate) const HOOKS_GET: &str = "\
Prints the status, how often it was tried, the last error and its times. --full adds the payload.

Examples:
  piton hooks get -i hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8
  piton hooks get -i hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8 --full";

pub(crate) const HOOKS_RETRY: &str = "\
A failed hook starts anew with all its attempts and the same idempotency key; a pending one need not wait any longer.

Examples:
  piton hooks retry -i hook_01J9ZCZ3Q0T5V8W3X7Y2B4N6M8";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  piton completions bash > ~/.local/share/bash-completion/completions/piton
  piton completions zsh > ~/.zfunc/_piton                    (a folder in your fpath)
  piton completions fish > ~/.config/fish/completions/piton.fish";

pub(crate) const MAN: &str = "\
Without a folder, prints piton(1). With one, writes a page for each command: piton-instances-list(1) and so on.

Examples:
  piton man | man -l -
  piton man ~/.local/share/man/man1";
