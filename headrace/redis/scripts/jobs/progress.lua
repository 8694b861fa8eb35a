-- Write down how far jobs have come that are still the caller's, and tell who watches them. KEYS: none.
-- ARGV: per job: id, token, a number and JSON. Returns how many of them it was.
local ours = {}
for i = 1, #ARGV, 3 do
  local token, state = unpack(read(ARGV[i], 't', 's'))
  if token == ARGV[i + 1] and state == 'r' then ours[#ours + 1] = i end
end
if #ours == 0 then return 0 end
pass_at_maxmemory(PAYLOADS)
for _, i in ipairs(ours) do
  -- Under its token: whoever reads it once the job is another's, or waits again, passes it over.
  redis.call('HSET', JOB .. ARGV[i], 'pg', ARGV[i + 1] .. ' ' .. ARGV[i + 2])
  redis.call('PUBLISH', NEWS .. ARGV[i], '')
end
return #ours
