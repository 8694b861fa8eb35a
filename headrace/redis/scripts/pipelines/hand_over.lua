-- @include payload_sizes
-- Make the stored result of one job that of another, whose record does not name it yet. From now on it counts for the key
-- of that job. KEYS: none.
-- ARGV: 1 the old entry of the payload index, 2 the new entry, 3 the new job. It can be repeated. Returns {1}.
local ref = string.match(ARGV[2], '^%S+')
local owner = read(ARGV[3], 'ky')[1] or ''
call('HLEN', keys.PAYLOAD_SIZES)
call('ZADD', keys.PAYLOADS, whole(NOW_US + 600000000), ARGV[2])
call('ZREM', keys.PAYLOADS, ARGV[1])
local size = uncount_payload(ref)
if size then count_payload(ref, size, owner) end
return {1}
