-- Record that a background worker is done with a task. KEYS: none.
-- ARGV: 1 the worker, 2 its name for the task, 3 '1': the task runs again, after those that wait now.
-- Returns 1, or 0 if the worker does not hold it, as after a repeat.
local held = keys.background_held .. ARGV[1]
call('LLEN', keys.BACKGROUND_TASKS)
local raw = call('HGET', held, ARGV[2])
if not raw then return 0 end
call('HDEL', held, ARGV[2])
if ARGV[3] == '1' then call('LPUSH', keys.BACKGROUND_TASKS, raw) end
return 1
