-- Record that a background worker holds the task that it has taken. KEYS: none.
-- ARGV: 1 the worker, 2 its name for the task, 3 the task.
local held = keys.background_held .. ARGV[1]
call('HLEN', held)
call('DEL', keys.background_taken .. ARGV[1])
call('HSET', held, ARGV[2], ARGV[3])
return 1
