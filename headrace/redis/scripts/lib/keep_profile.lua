-- Keeps a profile until its TTL in s has passed, or `most` newer ones are kept.
local function keep_profile(id, ttl_s, most)
  call('EXPIRE', keys.profile .. id, ttl_s)
  call('ZADD', keys.PROFILES, NOW, id)
  call('EXPIRE', keys.PROFILES, ttl_s)
  for _, old in ipairs(call('ZRANGE', keys.PROFILES, 0, -1 - tonumber(most))) do
    call('ZREM', keys.PROFILES, old)
    call('UNLINK', keys.profile .. old)
  end
end
