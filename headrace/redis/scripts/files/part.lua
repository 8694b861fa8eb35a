-- A part that lies in its store joins a file that is being written. KEYS: none.
-- ARGV: 1 file, 2 reference of the part, 3 offset of its first byte, 4 bytes of the file with it,
-- 5 ms until the file is given up where no other comes, 6 ms that a part in Redis is kept at the most.
-- Returns {1}, or {0} where the file is not being written (any more).
local file, ref = 'hr:file:' .. ARGV[1], ARGV[2]
local parts = file .. ':parts'
redis.call('ZCARD', parts)
if redis.call('HGET', file, 's') ~= 'w' then return {0} end
redis.call('ZADD', parts, ARGV[3], ref)
redis.call('HSET', file, 'b', ARGV[4])
redis.call('PEXPIRE', file, ARGV[5])
redis.call('PEXPIRE', parts, ARGV[5])
redis.call('PEXPIRE', PAYLOAD .. string.match(ref, ':(.*)'), ARGV[6])
return {1}
