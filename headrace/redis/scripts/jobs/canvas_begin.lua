-- Whether what follows a leased job is to be told of its end now. If so, a cancel comes too late from then on.
-- KEYS: none. ARGV: 1 id, 2 token. Returns 0 the job is another's, 1 yes, 3 it ends as cancelled.
local job = JOB .. ARGV[1]
local token, state, cancel = unpack(read(ARGV[1], 't', 's', 'cr'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
-- At maxmemory a script may write if it began by removing.
redis.call('HDEL', job, 'fw')
if cancel then return 3 end
redis.call('HSET', job, 'fw', token)
return 1
