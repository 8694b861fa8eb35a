-- Take the next background task: as BLMOVE, which Redis refuses at maxmemory. KEYS: none. ARGV: 1 the worker.
-- Returns the task, or nil.
local taken = keys.background_taken .. ARGV[1]
call('LLEN', taken)
local raw = call('RPOP', keys.BACKGROUND_TASKS)
if raw then call('LPUSH', taken, raw) end
return raw
