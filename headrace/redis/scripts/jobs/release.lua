-- @include finish
-- Give leased jobs of one queue back to the head of their lists, in the order in which they were claimed.
-- KEYS: the queue's. ARGV: 1 queue, 2 mode (free, alone or crash) and 3 losses: see give_back, then per job:
--       id, token.
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
  -- Said twice in one call, the second finds the job given back already.
  answer[c.n] = give_back(c.id, ARGV[2], ARGV[3], ARGV[1])
end
return answer
