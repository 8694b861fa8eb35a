-- Write down how far the stages of a pipeline's job have come, where the job is still the caller's, and tell who watches
-- it. KEYS: none.
-- ARGV: 1 id, 2 token, 3 the stages as JSON. Returns 1, or 0 where it is another's or has ended.
local token, state = unpack(read(ARGV[1], 't', 's'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
pass_at_maxmemory(PAYLOADS)
redis.call('HSET', JOB .. ARGV[1], 'sg', ARGV[3])
redis.call('PUBLISH', NEWS .. ARGV[1], '')
return 1
