-- @include keep_profile
-- Request a profile, unless this version of the model is being profiled. KEYS: none.
-- ARGV: 1 id, 2 the request (JSON), 3 `model@version`, 4 after how many us it has failed, 5 TTL in s, 6 how many are kept.
-- Returns {''} if it is requested, else {id of the profile that runs}.
local PROFILE = keys.profile .. ARGV[1]
if call('EXISTS', PROFILE) == 1 then return {''} end
for _, other in ipairs(call('ZRANGE', keys.PROFILES, 0, -1)) do
  local found = call('HMGET', keys.profile .. other, 'of', 'state', 'until')
  local open = found[2] == 'requested' or found[2] == 'running'
  if open and found[1] == ARGV[3] and tonumber(found[3]) > NOW_US then return {other} end
end
call('HSET', PROFILE, 'request', ARGV[2], 'of', ARGV[3], 'state', 'requested', 'at', NOW,
  'until', whole(NOW_US + tonumber(ARGV[4])))
keep_profile(ARGV[1], ARGV[5], ARGV[6])
-- Workers read this hash each second, and then look for requests.
call('HSET', keys.REGISTRY, 'profile', ARGV[1])
return {''}
