-- What a worker says of itself each second; also at maxmemory, where it must not look as if it were gone. KEYS: none.
-- ARGV: 1 owner, 2 seconds since 1970, 3 for how many seconds that is to be believed, 4 how many values follow that are
-- fields and values of its models' states, then per counter: key, field, by how much.
local key, states = 'hr:worker:' .. ARGV[1], tonumber(ARGV[4])
redis.call('HLEN', key); redis.call('ZCARD', 'hr:workers')
redis.call('ZREMRANGEBYSCORE', 'hr:workers', 0, whole(tonumber(ARGV[2]) - tonumber(ARGV[3])))
redis.call('HSET', key, unpack(ARGV, 5, 4 + states))
redis.call('EXPIRE', key, ARGV[3])
redis.call('ZADD', 'hr:workers', ARGV[2], ARGV[1])
-- A counter that another application has put something else under costs the others nothing.
for i = 5 + states, #ARGV, 3 do redis.pcall('HINCRBYFLOAT', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return 1
