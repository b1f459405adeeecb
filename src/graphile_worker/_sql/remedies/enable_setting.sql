alter system set :"setting" = 'on';
