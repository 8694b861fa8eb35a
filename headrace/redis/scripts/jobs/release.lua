-- @include release
-- Release leased jobs of one queue to the head of their lists, in the order in which they were claimed.
-- KEYS: the queue's. ARGV: 1 queue, 2 mode (free, alone or crash) and 3 losses (see lib/release.lua), then per job: id,
--       token.
-- Returns per job what became of it: queued, delayed, cancelled, dead, gone, or fenced.
check_types(true)
local answer, ours = {}, {}
for i = 4, #ARGV, 2 do
  local n = (i - 2) / 2
  local token, state = unpack(read(ARGV[i], 't', 's'))
  answer[n] = 'fenced'
  if token == ARGV[i + 1] and state == 'r' then
    ours[#ours + 1] = {id = ARGV[i], token = tonumber(token), n = n}
  end
end
for _, c in ipairs(latest_first(ours)) do
  -- If a job is named twice in one call, it is released already at the second time.
  answer[c.n] = release(c.id, ARGV[2], ARGV[3], ARGV[1])
end
return answer
