-- Add a stored part to a file that is being written. KEYS: none.
-- ARGV: 1 file, 2 reference of the part, 3 offset of its first byte, 4 bytes of the file with this part,
--       5 ms after which the file expires if no other part comes, 6 for how many ms a part in Redis is kept at most.
-- Returns {1}, or {0} if the file is not being written.
local file, ref = keys.file .. ARGV[1], ARGV[2]
local parts = file .. ':parts'
redis.call('ZCARD', parts)
if redis.call('HGET', file, 's') ~= 'w' then return {0} end
redis.call('ZADD', parts, ARGV[3], ref)
redis.call('HSET', file, 'b', ARGV[4])
redis.call('PEXPIRE', file, ARGV[5])
redis.call('PEXPIRE', parts, ARGV[5])
redis.call('PEXPIRE', keys.payload .. string.match(ref, ':(.*)'), ARGV[6])
return {1}
