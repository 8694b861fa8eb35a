-- Save the progress of leased jobs, and publish that there is some. KEYS: none.
-- ARGV: per job: id, token, "number JSON". Returns how many of the leases were not lost.
local ours = {}
for i = 1, #ARGV, 3 do
  local token, state = unpack(read(ARGV[i], 't', 's'))
  if token == ARGV[i + 1] and state == 'r' then ours[#ours + 1] = i end
end
if #ours == 0 then return 0 end
begin_with_removal(keys.PAYLOADS)
for _, i in ipairs(ours) do
  -- With its token, so that readers ignore it after the next claim.
  call('HSET', keys.job .. ARGV[i], 'pg', ARGV[i + 1] .. ' ' .. ARGV[i + 2])
  call('PUBLISH', keys.progress_channel .. ARGV[i], '')
end
return #ours
