-- Keep what a response was given with the record of its job, for as long as the record. KEYS: none.
-- ARGV: 1 the job's id, 2 the items.
-- Returns {1 if the record exists, else 0}.
local job = keys.job .. ARGV[1]
if not read(ARGV[1], 's')[1] then return {0} end
call('HSET', job, 'oi', ARGV[2])
return {1}
