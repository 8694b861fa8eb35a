-- Write down how far the stages of a pipeline's job have come, where the job is still the caller's, and tell who watches
-- it; in the same call free the results of those stages' jobs that no stage takes from any more. KEYS: none.
-- ARGV: 1 id, 2 token, 3 the stages as JSON, then ids of jobs that have succeeded. Their records stay, and say so; what
-- lies of them in a payload store is due. Said twice, it is the same. Returns 1, or 0 where the job is another's or has ended.
local token, state = unpack(read(ARGV[1], 't', 's'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
local freed = {}
for i = 4, #ARGV do
  local of, result, model = unpack(read(ARGV[i], 's', 'rr', 'm'))
  if of == 's' then freed[#freed + 1] = {ARGV[i], result, model} end
end
pass_at_maxmemory(PAYLOADS)
for _, one in ipairs(freed) do
  local id, result, model = unpack(one, 1, 3)
  redis.call('UNLINK', META .. id)
  redis.call('HDEL', JOB .. id, 'rr', 'r')
  redis.call('HSET', JOB .. id, 'fd', '1')
  if result and model then
    redis.pcall('ZADD', PAYLOADS, 'XX', NOW, string.match(result, '^%S*') .. ' ' .. id .. ' ' .. model .. ' r')
  end
end
redis.call('HSET', JOB .. ARGV[1], 'sg', ARGV[3])
redis.call('PUBLISH', NEWS .. ARGV[1], '')
return 1
